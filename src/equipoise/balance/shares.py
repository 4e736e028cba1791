"""The four things that a worker's time can be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

STATES = ("worked", "preempted", "starved", "blocked")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Seconds that one worker spent in each state."""

    worked: float = 0.0  # on a core
    preempted: float = 0.0  # could have worked, waited for a core
    starved: float = 0.0  # waited for upstream
    blocked: float = 0.0  # waited for downstream

    @property
    def total(self) -> float:
        return self.worked + self.preempted + self.starved + self.blocked

    def share(self, state: str) -> float:
        """Of the worker's time, 0..1; 0 where no time was measured."""
        seconds: float = getattr(self, state)
        return seconds / self.total if self.total > 0 else 0.0


def add(workers: Iterable[Shares]) -> Shares:
    """Several workers as one."""
    rows = list(workers)
    return Shares(**{state: sum(getattr(row, state) for row in rows) for state in STATES})
