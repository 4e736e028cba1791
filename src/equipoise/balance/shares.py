"""The four things that a worker's time can be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal

Side = Literal["sampling", "learning", "keeping", "beside"]  # of the ring: "keeping" a replay's rows; "beside" it
STATES = ("worked", "preempted", "starved", "blocked")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Seconds that one worker spent in each state."""

    worked: float = 0.0  # had something to do, and did not wait for a core
    preempted: float = 0.0  # could have worked, waited for a core
    starved: float = 0.0  # waited for upstream
    blocked: float = 0.0  # waited for downstream
    asleep: float = 0.0  # part of worked: on no core and waiting for none, as an env that waits for something outside
    writing: float = 0.0  # part of worked: writing rows into a replay
    summing: float = 0.0  # part of worked: waiting for what other learners add to a sum
    resetting: float = 0.0  # part of worked and preempted: resets of envs
    resets: float = 0.0  # their number
    done: float = 0.0  # pieces of work: blocks of rows of who samples, batches or rounds of the others
    kind: str = ""  # the worker's kind
    side: Side = "beside"
    serves: bool = False  # a sampling worker that acts for envs which others step

    @property
    def total(self) -> float:
        return self.worked + self.preempted + self.starved + self.blocked

    def share(self, state: str) -> float:
        """The share of a state in the worker's time, 0..1; 0 where no time was measured."""
        seconds: float = getattr(self, state)
        return seconds / self.total if self.total > 0 else 0.0


def add(workers: Iterable[Shares]) -> Shares:
    """Several workers as one, of no kind."""
    rows = list(workers)
    return Shares(**{name: sum(getattr(row, name) for row in rows) for name in SECONDS})


SECONDS = tuple(f.name for f in fields(Shares) if f.type == "float")
