"""The user's requests to a run besides its reports: saving now, its state, and the promise of a
resume.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path

from equipoise.plans.blueprint import Blueprint
from equipoise.record.report import Evaluation, Report
from equipoise.types import EnvSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Where a run is. ``step`` is what ``steps`` counts: env steps, or updates of a run without
    actors.
    """

    status: str = "new"  # then "running", and as in summary.json in the end
    step: int = 0
    steps: int
    updates: int = 0  # versions that were made
    episodes: int = 0
    return_mean: float | None = None  # of the newest episodes of training
    evaluation: Evaluation | None = None  # the last one
    saved: int | None = None  # step of the newest whole checkpoint
    directory: Path

    def after(self, report: Report) -> RunState:
        """The state of the run as of this report."""
        return replace(
            self,
            status="running",
            step=report.step,
            updates=report.updates,
            episodes=report.episodes,
            return_mean=report.return_mean,
            evaluation=report.evaluation or self.evaluation,
        )


@dataclass(slots=True)
class SaveRequest:
    """A checkpoint that a caller waits for: wanted, then asked of the workers, then there, or an
    error.
    """

    result: Path | str | None = None  # the checkpoint, or why there is none
    # the reports of the meantime, for the iterating caller
    reports: deque[Report] = field(default_factory=deque)
    _wanted: bool = False
    _asked: bool = False

    def begin(self) -> None:
        """Begin to wait for a checkpoint."""
        self._wanted, self._asked, self.result = True, False, None

    def due(self, *, busy: bool) -> bool:
        """Are the workers to be asked now? Not while they still write an earlier checkpoint
        (``busy``). True once.
        """
        if not self._wanted or busy:
            return False
        self._wanted, self._asked = False, True
        return True

    def lost(self) -> None:
        """The workers that were asked are gone: ask other workers."""
        self._wanted, self._asked = self._wanted or self._asked, False

    def done(self, result: Path | str) -> None:
        """A checkpoint is complete, or could not be written."""
        if self._asked:
            self._asked, self.result = False, result


def promise(spec: EnvSpec) -> str:
    """The state that a resume restores, in a sentence."""
    envs = {
        "exact": "envs go on exactly where they were",
        "replay": "envs are brought back by playing their episodes again",
        "restart": "envs cannot be restored: their episodes start again",
    }[spec.resume]
    return f"weights, optimisers, experience and random generators are exact; {envs}"


def doubts(blue: Blueprint, version: int) -> list[str]:
    """Notes at the start of a run that differs from its settings; ``version``: where it goes on
    from, or -1.
    """
    asked, done = blue.program.schedule.steps, blue.pace.steps(blue.updates)
    said = [schedules_over(blue, version)]
    if done != asked:
        rows = blue.pace.rows
        said.insert(0, f"{done:,} steps are done in place of {asked:,}: whole batches of {rows:,}")
    return [one for one in said if one is not None]


def schedules_over(blue: Blueprint, version: int) -> str | None:
    """A warning if a run begins with schedules that are at their end; ``version``: that it goes on
    from, -1 for none.
    """
    done = (blue.before or 0) + max(version, 0)
    changes = any(policy.optimizer.schedule != "constant" for policy in blue.policies.values())
    if not (done and changes and done >= blue.schedule_updates):
        return None
    return (
        "warning: the schedules have come to their end, so the learning rate is 0; --set "
        "schedule.schedule_steps=N stretches them, --set optimizer.schedule=constant gives them up"
    )
