"""An attempt at a run: the workers from their start to a failure that replacing a worker does not
mend.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from equipoise.deaths import Streak
from equipoise.errors import WorkerFailed
from equipoise.run.evaluation_schedule import EvaluationSchedule
from equipoise.run.reporter import Reporter
from equipoise.run.starting import Runtime


@dataclass(slots=True)
class Attempt:
    """The workers that run now and the driver's state of them; another attempt follows a failure of
    the learner.
    """

    runtime: Runtime
    reporter: Reporter
    evaluations: EvaluationSchedule
    furthest: int = 0  # version that any attempt had come to when it failed
    # of attempts; progress is a version that none before had come to
    streak: Streak = field(default_factory=Streak)

    def take(self, *, ends: bool = False) -> None:
        """Let the learner go on that holds still for an evaluation, if there is room for its
        weights.
        """
        if (version := self.evaluations.take(ends=ends)) is not None:
            self.runtime.examined(version)

    def failed(self, error: WorkerFailed, give_up_s: float) -> str:
        """Count the failure -> why another attempt has no hope; empty if it has."""
        # a failure at one version would come again there for ever
        reached = self.runtime.stats().version
        self.streak.add(error.death, progress=reached > self.furthest)
        self.furthest = max(reached, self.furthest)
        return self.streak.hopeless(error.death, learned_at=0.0, give_up_s=give_up_s)
