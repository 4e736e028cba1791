"""The median rule: a trial that stays below the others' running averages stops early."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Annotated, ClassVar

from equipoise.facts import Help, NonNegativeInt, PositiveInt
from equipoise.studies.best import value
from equipoise.studies.history import Decision, GoOn, History, Stop, Trial
from equipoise.studies.strategies.base import Base, boundary, next_trials


@dataclass(frozen=True, kw_only=True)
class MedianStopping(Base):
    """Random settings, and the median rule of Vizier (Golovin et al., 2017): a trial stops if its
    best score so far is below the median of the other trials' mean scores up to the same steps.
    """

    needs_results: ClassVar[bool] = True

    every: Annotated[
        NonNegativeInt, Help("Env steps between results; 0 chooses a tenth of a trial")
    ] = 0
    grace: Annotated[NonNegativeInt, Help("Env steps before which no trial is stopped")] = 0
    min_trials: Annotated[PositiveInt, Help("Fewest other trials for a median")] = 3

    def ask(self, history: History) -> list[Decision]:
        every = self.every or math.ceil(self.plan.steps / 10)
        paused = [one for one in history.of("paused") if one.steps < self.plan.steps]
        reasons = {one.name: self._behind(history, one) for one in paused}
        decisions: list[Decision] = [
            Stop(trial=name, reason=reason) for name, reason in reasons.items() if reason
        ]
        going_on: list[Decision] = [
            GoOn(
                trial=one.name,
                to=boundary(every, one.steps, self.plan.steps),
                reason=f"it is not below the median at {one.steps:,} steps",
            )
            for one in paused
            if not reasons[one.name]
        ]
        del going_on[history.free :]
        started = next_trials(
            history,
            self.plan.trials,
            min(every, self.plan.steps),
            self.draw,
            "random settings {}",
            history.free - len(going_on),
        )
        return decisions + going_on + started

    def _behind(self, history: History, trial: Trial) -> str:
        """Return the reason to stop a trial; "" if it may go on."""
        means = [
            statistics.fmean(scores)
            for other in history.of()
            if other is not trial
            and other.steps >= trial.target
            and (scores := [value(one.score) for one in other.points if one.steps <= trial.steps])
        ]
        if trial.steps < max(self.grace, 1) or len(means) < self.min_trials:
            return ""
        best = max((value(one.score) for one in trial.points), default=-math.inf)
        median = statistics.median(means)
        if best >= median:
            return ""
        if best == -math.inf:
            return f"it has no finite score up to {trial.steps:,} steps"
        return (
            f"its best score {best:.6g} up to {trial.steps:,} steps is below the median "
            f"{median:.6g} of {len(means)} trials"
        )
