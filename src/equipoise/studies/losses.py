"""Jobs that were lost with their process or their machine: each begins again, up to a bound."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.studies.executor import Job
from equipoise.studies.history import Result

LOSSES = 3  # in a row without progress, after which the trial counts as failed


@dataclass(slots=True)
class _Losses:
    reached: int = 0  # env steps, as far as they were reported
    before: int = -1  # env steps at the last loss
    count: int = 0


class Losses:
    """The losses of each job that is training."""

    def __init__(self) -> None:
        self._of: dict[str, _Losses] = {}

    def begin(self, trial: str) -> None:
        self._of[trial] = _Losses()

    def reach(self, trial: str, steps: int) -> None:
        self._of[trial].reached = steps

    def lose(self, job: Job, how: str) -> Result | None:
        """Return the result of a job that was lost too often; None for one to begin again."""
        one = self._of[job.trial]
        one.count = one.count + 1 if one.reached <= one.before else 1
        one.before = one.reached
        if one.count < LOSSES:
            return None
        error = f"its process {how}, {LOSSES} times without progress; see {job.log}"
        return Result(trial=job.trial, steps=one.reached, state="failed", error=error)
