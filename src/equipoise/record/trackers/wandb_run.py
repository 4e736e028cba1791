"""Weights & Biases (the extra ``wandb``); ``WANDB_MODE=offline`` keeps the data on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import wandb

from equipoise.record.trackers.tracker import Begin, table


class WandbRun:
    """One W&B run, whose step is the env step."""

    def __init__(self, begin: Begin) -> None:
        self._run = wandb.init(
            project=begin.name,
            id=begin.id,
            name=begin.directory.name,
            dir=str(begin.directory),
            config=dict(begin.config),
            resume="allow",
            # the live view has the terminal
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def completions(self, samples: Sequence[Mapping[str, object]], step: int) -> None:
        columns, rows = table(samples)
        # no step of the run: W&B drops a table that comes after a later step
        shown = wandb.Table(columns=["step", *columns], data=[[step, *row] for row in rows])
        self._run.log({"completions": shown})

    def finish(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


begin = WandbRun
