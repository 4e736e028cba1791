"""Confirmation: the best settings of a search, trained again on fresh seeds."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Annotated

from equipoise.facts import Help, PositiveInt
from equipoise.studies.best import best
from equipoise.studies.history import Decision, History, Start
from equipoise.studies.strategy import Plan, Strategy


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """A search by another strategy; then its best settings are trained from the beginning on
    ``seeds`` fresh seeds. The settings of a clone are its last ones.
    """

    inner: Strategy
    seeds: Annotated[PositiveInt, Help("Fresh seeds")] = 3

    @property
    def plan(self) -> Plan:
        return self.inner.plan

    @property
    def needs_results(self) -> bool:
        return self.inner.needs_results

    @property
    def changes_settings(self) -> bool:
        return self.inner.changes_settings

    def ask(self, history: History) -> list[Decision]:
        begun = len(history.of(role="confirm"))
        if not begun:
            decisions = self.inner.ask(history)
            if decisions or history.of("training"):
                return decisions
        winner = best(history)
        if winner is None:
            return []
        taken = {self.plan.seed if one.seed is None else one.seed for one in history.of()}
        fresh = (seed for seed in itertools.count(self.plan.seed) if seed not in taken)
        starts: list[Decision] = [
            Start(
                trial=f"confirm_{number}",
                settings=winner.settings,
                to=self.plan.steps,
                seed=seed,
                role="confirm",
                reason=f"the best settings, those of {winner.name}, on fresh seed {number + 1} of "
                f"{self.seeds}",
            )
            for number, seed in enumerate(itertools.islice(fresh, self.seeds))
        ]
        return starts[begun : begun + history.free]
