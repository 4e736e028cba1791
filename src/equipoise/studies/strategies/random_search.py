"""Random search: settings drawn from the space, each trained to the end."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.studies.history import Decision, History
from equipoise.studies.strategies.base import Base, next_trials


@dataclass(frozen=True, kw_only=True)
class RandomSearch(Base):
    """Settings drawn independently and uniformly from the space, each trained to the end."""

    def ask(self, history: History) -> list[Decision]:
        plan = self.plan
        return next_trials(history, plan.trials, plan.steps, self.draw, "random settings {}")
