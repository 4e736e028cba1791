"""Weights & Biases (the extra ``wandb``); ``WANDB_MODE=offline`` keeps all on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import wandb

from equipoise.record.trackers.tracker import Begin


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
            # the terminal is the live view's
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def completions(self, samples: Sequence[Mapping[str, object]], step: int) -> None:
        names = list(samples[0]) if samples else []
        rows = [[one.get(name) for name in names] for one in samples]
        # the step of a table is one of its own: W&B drops what comes after a later step
        table = wandb.Table(columns=["step", *names], data=[[step, *row] for row in rows])
        self._run.log({"completions": table})

    def finish(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


begin = WandbRun
