"""Grid search: every combination of a few values of each setting."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from equipoise import facts
from equipoise.facts import Help
from equipoise.studies.history import Decision, History
from equipoise.studies.space import Settings
from equipoise.studies.strategies.base import Base, next_trials


@dataclass(frozen=True, kw_only=True)
class Grid(Base):
    """Every combination of the choices and of ``points`` values of each range."""

    points: Annotated[int, facts.Range(1, 1000), Help("Values of each range")] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self._cells) > self.plan.trials:
            raise ValueError(
                f"Grid: must have at most as many combinations as trials ({self.plan.trials:,}), "
                f"got {len(self._cells):,}; try trials={len(self._cells)} or fewer points"
            )

    @cached_property
    def _cells(self) -> list[Settings]:
        return self.plan.space.grid(self.points)

    def ask(self, history: History) -> list[Decision]:
        return next_trials(
            history, len(self._cells), self.plan.steps, self._cells.__getitem__, "combination {}"
        )
