"""Seeds: the same settings on several seeds."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.studies.history import Decision, History, Start
from equipoise.studies.strategies.base import Base


@dataclass(frozen=True, kw_only=True)
class Seeds(Base):
    """The same settings on ``trials`` seeds, from the study's own seed on."""

    def __post_init__(self) -> None:
        if len(self.plan.space):
            raise ValueError(
                f"Seeds: must have no space, got one of {len(self.plan.space)} settings; try the "
                "strategy random"
            )

    def ask(self, history: History) -> list[Decision]:
        first = len(history.of())
        numbers = range(first, min(self.plan.trials, first + history.free))
        return [
            Start(
                trial=f"seed_{self.plan.seed + number}",
                settings={},
                to=self.plan.steps,
                seed=self.plan.seed + number,
                reason=f"seed {number + 1} of {self.plan.trials}",
            )
            for number in numbers
        ]
