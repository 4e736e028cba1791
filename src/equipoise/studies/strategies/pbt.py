"""Population based training: poor members are replaced by changed copies of good ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from equipoise import facts
from equipoise.facts import Help, NonNegativeInt, UnitInterval
from equipoise.studies.best import worth
from equipoise.studies.history import Clone, Decision, GoOn, History, Start, Stop, Trial
from equipoise.studies.space import Choice, Parameter, Settings, Value
from equipoise.studies.strategies.base import Base, boundary

FACTORS = (0.8, 1.2)


@dataclass(frozen=True, slots=True)
class Copy:
    """The replacement of one member at the end of a generation."""

    slot: int
    loser: Trial
    source: Trial
    settings: Settings
    reason: str


@dataclass(frozen=True, kw_only=True)
class PBT(Base):
    """Population based training (arXiv:1711.09846) of ``trials`` members: after each ``every`` env
    steps the worst ``quantile`` of them are replaced by copies of the best, with changed settings.

    All members end a generation before the next one begins, so that neither the number of jobs nor
    their speed changes a decision.
    """

    needs_results: ClassVar[bool] = True
    changes_settings: ClassVar[bool] = True

    every: Annotated[
        NonNegativeInt, Help("Env steps of a generation; 0 chooses a tenth of a trial")
    ] = 0
    quantile: Annotated[
        float, facts.Range(0, 0.5, above=True), Help("Part of the members that is replaced")
    ] = 0.25
    resample: Annotated[UnitInterval, Help("Probability to draw a setting from its range")] = 0.25

    def ask(self, history: History) -> list[Decision]:
        lines = [self._line(history, slot) for slot in range(self.plan.trials)]
        if fresh := [slot for slot, line in enumerate(lines) if not line]:
            return self._starts(fresh[: history.free])
        members = [list(line.values())[-1] for line in lines]
        living = [one for one in members if one.state in ("training", "paused")]
        ended = min((self._ended(one) for one in living), default=self._generations)
        if not 0 < ended < self._generations:
            return []
        copies = self._copies(lines, ended)
        decisions: list[Decision] = []
        # copies first: their sources are still where their scores were measured
        new = [one for one in copies if self._name(one.slot, ended) not in history.trials]
        for one in new[: history.free]:
            if one.loser.state == "paused":
                decisions.append(Stop(trial=one.loser.name, reason=one.reason))
            decisions.append(
                Clone(
                    trial=self._name(one.slot, ended),
                    source=one.source.name,
                    settings=one.settings,
                    to=self._after(one.source.steps),
                    reason=one.reason,
                )
            )
        replaced = {one.loser.name for one in copies}
        waiting = [
            one
            for one in living
            if one.state == "paused" and self._ended(one) == ended and one.name not in replaced
        ]
        waiting.sort(key=lambda one: one.steps)  # the one that is furthest behind goes first
        decisions += [
            GoOn(
                trial=one.name,
                to=self._after(one.steps),
                reason=f"generation {ended + 1} of {self._generations}, with the same settings",
            )
            for one in waiting[: max(history.free - len(new), 0)]
        ]
        return decisions

    @property
    def _every(self) -> int:
        return min(self.every or math.ceil(self.plan.steps / 10), self.plan.steps)

    @property
    def _generations(self) -> int:
        return math.ceil(self.plan.steps / self._every)

    def _after(self, steps: int) -> int:
        return boundary(self._every, steps, self.plan.steps)

    def _ended(self, trial: Trial) -> int:
        """Return the number of generations that a trial has ended."""
        if trial.state != "training" and trial.steps >= self.plan.steps:
            return self._generations
        return math.ceil(trial.target / self._every) - (trial.state == "training")

    def _name(self, slot: int, generation: int) -> str:
        members, generations = (len(str(n - 1)) for n in (self.plan.trials, self._generations))
        return f"member_{slot:0{members}}_g{generation:0{generations}}"

    def _line(self, history: History, slot: int) -> dict[int, Trial]:
        """Return the trials of a member by the generation after which they began."""
        names = {one: self._name(slot, one) for one in range(self._generations)}
        return {one: history.trials[name] for one, name in names.items() if name in history.trials}

    def _starts(self, slots: Sequence[int]) -> list[Decision]:
        # a Latin hypercube, so that a small population covers every range
        rng, members = self.plan.rng("population"), self.plan.trials
        columns = [rng.permutation(members) for _ in self.plan.space]
        shares = (np.array(columns).T + rng.random((members, len(columns)))) / members
        return [
            Start(
                trial=self._name(slot, 0),
                settings=self.plan.space.at(shares[slot].tolist()),
                to=self._every,
                reason=f"member {slot + 1} of {members}",
            )
            for slot in slots
        ]

    def _copies(self, lines: Sequence[dict[int, Trial]], ended: int) -> list[Copy]:
        """Return the copies after a generation: the same ones until a member of it goes on."""
        earlier = [
            [one for generation, one in line.items() if generation < ended] for line in lines
        ]
        members = [line[-1] for line in earlier]
        if any(math.ceil(one.target / self._every) > ended for one in members):
            return []
        at = ended * self._every
        scores = [worth(one, at) for one in members]
        ranked = sorted(range(len(members)), key=lambda slot: -scores[slot])
        part = max(int(len(members) * self.quantile), 1)
        good = [
            slot
            for slot in ranked[:part]
            if scores[slot] > -math.inf and members[slot].steps < self.plan.steps
        ]
        replaced = [
            slot
            for slot in (ranked[part:] if good else [])
            if scores[slot] == -math.inf
            or (slot in ranked[-part:] and members[slot].state != "done")
        ]
        rng = self.plan.rng("copies", ended)
        sources = [good[int(rng.integers(len(good)))] for _ in replaced]
        settings = self._explored([members[one] for one in sources], earlier, rng)
        copies = []
        for slot, source, new in zip(replaced, sources, settings):
            loser = members[slot].name
            reason = (
                f"{loser} has no finite score"
                if scores[slot] == -math.inf
                else f"the score {scores[slot]:.6g} of {loser} at {at:,} steps is among the worst "
                f"{part} of {len(members)}"
            )
            reason += f"; {members[source].name} has {scores[source]:.6g}"
            copies.append(Copy(slot, members[slot], members[source], new, reason))
        return copies

    def _explored(
        self,
        sources: Sequence[Trial],
        earlier: Sequence[Sequence[Trial]],
        rng: np.random.Generator,
    ) -> list[Settings]:
        """Return the settings of a copy of each source. ``earlier``: the trials of each member."""
        return [
            {
                one.key: one.at(float(rng.random()))
                if rng.random() < self.resample
                else perturbed(one, source.settings[one.key], rng)
                for one in self.plan.space
            }
            for source in sources
        ]


def perturbed(parameter: Parameter, value: Value, rng: np.random.Generator) -> Value:
    """Return a number times 0.8 or 1.2, within its range, or a neighbour of a choice."""
    up = bool(rng.integers(2))
    if isinstance(parameter, Choice):
        place, last = parameter.index(value), len(parameter.values) - 1
        place += 1 if (up and place < last) or place == 0 else -1
        return parameter.values[min(place, last)]
    new = parameter.clipped(float(value) * FACTORS[up])
    if parameter.whole and new == value:  # 2 times 1.2 is rounded to 2
        new = parameter.clipped(float(value) + (1 if up else -1))
    return new
