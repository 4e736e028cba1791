"""Trackio (the extra ``trackio``): runs on this machine, which ``trackio show`` shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import trackio
import trackio.run
import trackio.utils

from equipoise.record.trackers.tracker import Begin, table


class TrackioRun:
    """One run of a project."""

    def __init__(self, begin: Begin) -> None:
        for module in (trackio, trackio.run, trackio.utils):
            vars(module)["print"] = _nothing  # the live view has the terminal
        self._run = trackio.init(
            project=begin.name,
            # Trackio finds a run by its name alone
            name=f"{begin.directory.name}-{begin.id}",
            config=dict(begin.config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def completions(self, samples: Sequence[Mapping[str, object]], step: int) -> None:
        columns, rows = table(samples)
        self._run.log({"completions": trackio.Table(columns=columns, data=rows)}, step=step)

    def finish(self, *, failed: bool) -> None:
        self._run.finish()


def _nothing(*_: object, **__: object) -> None:
    """Print nothing."""


begin = TrackioRun
