"""Cost-aware search: the gain in score that a core-second is expected to bring."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from equipoise.facts import Help, NonNegativeInt
from equipoise.studies.best import worth
from equipoise.studies.gp import GaussianProcess, Values
from equipoise.studies.history import Decision, GoOn, History, Start, Trial
from equipoise.studies.space import Settings
from equipoise.studies.strategies.base import Base, boundary, next_trials, trial_name

CANDIDATES = 500  # settings drawn for each choice
LEAST_GAIN = 0.01  # deviations of all scores; below it a paused trial does not go on at the end


@dataclass(frozen=True, kw_only=True)
class CostAware(Base):
    """The trial, new or paused, whose score at its end is expected to improve on the best one by
    the most for each core-second until there.

    Two Gaussian processes over the space and env steps predict scores and the logarithm of measured
    core-seconds for each step.
    """

    needs_results: ClassVar[bool] = True

    every: Annotated[
        NonNegativeInt, Help("Env steps between results; 0 chooses a quarter of a trial")
    ] = 0
    first: Annotated[
        NonNegativeInt,
        Help("Random settings at the beginning; 0 chooses them", "Two more than the space has."),
    ] = 0

    def _packages(self) -> Sequence[str]:
        return ("sklearn",)

    def ask(self, history: History) -> list[Decision]:
        trials = history.of()
        first = min(self.first or len(self.plan.space) + 2, self.plan.trials)
        scores = self._scores(trials)
        if len(trials) < first or not scores:
            count = self.plan.trials if len(trials) >= first else first
            return next_trials(history, count, self._after(0), self.draw, "random settings {}")
        decisions: list[Decision] = []
        if history.free:
            seed = int(self.plan.rng("fit", len(trials)).integers(2**32))
            score, rate = GaussianProcess(scores, seed), self._rate(trials, seed)
            while len(decisions) < history.free:
                decision = self._next(trials, decisions, score, rate)
                if decision is None:
                    break
                decisions.append(decision)
        return decisions

    def _after(self, steps: int) -> int:
        return boundary(self.every or math.ceil(self.plan.steps / 4), steps, self.plan.steps)

    def _scores(self, trials: Sequence[Trial]) -> list[tuple[list[float], float]]:
        """Return what was measured: last scores at the end, that of a failed trial is the worst."""
        finite = [p.score for one in trials for p in one.points if math.isfinite(p.score)]
        early, last = [], []
        for one in trials if finite else ():
            if one.state != "training" and worth(one) == -math.inf:
                last.append((self.point(one.settings, one.steps), min(finite)))
                continue
            points = [
                (self.point(one.settings, p.steps), p.score)
                for p in one.points
                if math.isfinite(p.score)
            ]
            early += points[:-1]
            last += points[-1:]
        return early + last

    def _rate(self, trials: Sequence[Trial], seed: int) -> GaussianProcess:
        """Return the process of the logarithm of core-seconds for each env step."""
        measured = [
            (self.point(one.settings, one.steps), math.log(one.core_seconds / one.steps))
            for one in trials
            if one.core_seconds > 0 and one.steps > 0
        ]
        return GaussianProcess(measured or [(self.point(trials[0].settings, 0), 0.0)], seed)

    def _next(
        self,
        trials: Sequence[Trial],
        decisions: Sequence[Decision],
        score: GaussianProcess,
        rate: GaussianProcess,
    ) -> Decision | None:
        """Return the next decision after those of this call; None to begin no more."""
        steps = self.plan.steps
        begun = {one.trial for one in decisions}
        number = len(trials) + sum(isinstance(one, Start) for one in decisions)
        paused = [
            one
            for one in trials
            if one.state == "paused"
            and one.name not in begun
            and one.steps < steps
            and worth(one) > -math.inf
        ]
        settings = self._candidates(trials, number) if number < self.plan.trials else []
        points = np.array(
            [self.point(one, steps) for one in settings + [p.settings for p in paused]]
        )
        if not len(points):
            return None
        pending = [one.settings for one in trials if one.state == "training" or one.name in begun]
        pending += [one.settings for one in decisions if isinstance(one, Start)]
        score = score.believing([self.point(one, steps) for one in pending])
        tried = [one for one in trials if worth(one) > -math.inf]
        best = max(score.at([self.point(one.settings, steps) for one in tried])[0], default=0.0)
        mean, deviation = score.at(points)
        gain = expected_improvement(mean, deviation, best)
        left = np.array([steps] * len(settings) + [steps - one.steps for one in paused])
        cost = np.exp(rate.at(points)[0]) * left
        chosen = int(np.argmax(gain / cost))
        whole = any(one.target == steps or one.state == "done" for one in tried)
        if not settings and not whole:
            chosen = int(np.argmax(mean))
        elif not settings and gain[chosen] < LEAST_GAIN * score.scale:
            return None
        reason = (
            f"its expected gain in score is {gain[chosen]:.3g} for {cost[chosen]:.3g} core-seconds "
            f"over {best:.6g}"
        )
        if chosen >= len(settings):
            trial = paused[chosen - len(settings)]
            return GoOn(trial=trial.name, to=self._after(trial.steps), reason=reason)
        return Start(
            trial=trial_name(number), settings=settings[chosen], to=self._after(0), reason=reason
        )

    def _candidates(self, trials: Sequence[Trial], number: int) -> list[Settings]:
        """Return random settings, a fifth of them near the best ones."""
        rng = self.plan.rng("candidates", number)
        shares = rng.random((CANDIDATES, len(self.plan.space)))
        near = [
            self.plan.space.shares(one.settings)
            for one in sorted(trials, key=lambda one: -worth(one))[:5]
        ]
        local = np.repeat(near, CANDIDATES // 5 // len(near), axis=0)
        shares[: len(local)] = np.clip(local + rng.normal(0, 0.1, local.shape), 0, 1)
        return [self.plan.space.at(row) for row in shares.tolist()]


def expected_improvement(mean: Values, deviation: Values, best: float) -> Values:
    """Return by how much a normal variable is expected to be above ``best``."""
    deviation = np.maximum(deviation, 1e-12)
    z = (mean - best) / deviation
    below = np.array([math.erfc(-one / math.sqrt(2)) / 2 for one in z])
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    found: Values = deviation * (z * below + density)
    return found
