"""Population based bandits: PBT whose new settings a Gaussian process chooses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from equipoise.facts import Help, NonNegativeFloat
from equipoise.studies.gp import GaussianProcess
from equipoise.studies.history import Trial
from equipoise.studies.space import Settings
from equipoise.studies.strategies.pbt import PBT

CANDIDATES = 1000  # settings drawn for each copy


@dataclass(frozen=True, kw_only=True)
class PB2(PBT):
    """Population based bandits (arXiv:2002.02518): as PBT, but a copy's settings are those with the
    highest upper confidence bound of the change of score in the next generation, by a Gaussian
    process over time and settings.
    """

    kappa: Annotated[NonNegativeFloat, Help("Deviations above the mean in the bound")] = 2.0

    def _packages(self) -> Sequence[str]:
        return ("sklearn",)

    def _explored(
        self,
        sources: Sequence[Trial],
        earlier: Sequence[Sequence[Trial]],
        rng: np.random.Generator,
    ) -> list[Settings]:
        measured = [
            (self.point(one.settings, after.steps), after.score - before.score)
            for line in earlier
            for one in line
            for before, after in zip(one.points, one.points[1:])
            if after.steps > one.parent_steps and math.isfinite(after.score - before.score)
        ]
        if not measured or not sources:  # after the first generation
            return super()._explored(sources, earlier, rng)
        measured.sort(key=lambda one: one[0][-1])  # the newest last
        process = GaussianProcess(measured, int(rng.integers(2**32)))
        chosen: list[Settings] = []
        for source in sources:
            steps = self._after(source.steps)
            believed = process.believing([self.point(one, steps) for one in chosen])
            candidates = [self.plan.space.sample(rng) for _ in range(CANDIDATES)]
            mean, deviation = believed.at([self.point(one, steps) for one in candidates])
            chosen.append(candidates[int(np.argmax(mean + self.kappa * deviation))])
        return chosen
