"""The four things that a worker's time can be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal

# a worker's place in the ring; "keeping": a replay's rows
Side = Literal["sampling", "learning", "keeping", "beside"]
STARTED = 3  # blocks, updates or rounds after which a worker has allocated what it works with
STATES = ("worked", "preempted", "starved", "blocked")
BEHIND = 2.0  # an actor is behind if its rows take this many times as long as the usual actor's


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Seconds that one worker spent in each state."""

    worked: float = 0.0  # had something to do, and did not wait for a core
    preempted: float = 0.0  # could have worked, waited for a core
    starved: float = 0.0  # waited for upstream
    blocked: float = 0.0  # waited for downstream
    # part of worked: on no core and waiting for none, as an env that waits for something outside
    asleep: float = 0.0
    # pieces of work: blocks of rows that were sampled, or batches or rounds
    done: float = 0.0
    # seconds, worked or preempted, of each part of the work
    parts: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, float] = field(default_factory=dict)  # how often each part came
    kind: str = ""  # the worker's kind
    side: Side = "beside"
    serves: bool = False  # a sampling worker that acts for envs which others step

    @property
    def total(self) -> float:
        return self.worked + self.preempted + self.starved + self.blocked

    @property
    def seconds(self) -> dict[str, float]:
        """The fields that are seconds, by their names."""
        return {name: getattr(self, name) for name in SECONDS}

    @property
    def begun(self) -> bool:
        """Has the worker allocated what it works with? A worker that is not in the ring has no
        rounds.
        """
        return self.side == "beside" or self.done >= STARTED

    def share(self, state: str) -> float:
        """The share of a state in the worker's time, 0..1; 0 if no time was measured."""
        return self.seconds[state] / self.total if self.total > 0 else 0.0

    def spent(self, part: str) -> float:
        """The seconds of a part, no more than the seconds of work: parts count waits for cores."""
        return min(self.parts.get(part, 0.0), self.worked)

    def part(self, name: str) -> float:
        """The share of a part of the work in the worker's time, 0..1; 0 if it has no such part."""
        return min(self.parts.get(name, 0.0) / self.total, 1.0) if self.total > 0 else 0.0


def of_side(shares: Iterable[Shares], side: Side) -> Shares:
    """The sum of the workers on one side."""
    return add(one for one in shares if one.side == side)


def add(workers: Iterable[Shares]) -> Shares:
    """Several workers as one, of no kind."""
    rows = list(workers)
    parts = dict.fromkeys(name for row in rows for name in row.parts)
    return Shares(
        worked=sum(row.worked for row in rows),
        preempted=sum(row.preempted for row in rows),
        starved=sum(row.starved for row in rows),
        blocked=sum(row.blocked for row in rows),
        asleep=sum(row.asleep for row in rows),
        done=sum(row.done for row in rows),
        parts={name: sum(row.parts.get(name, 0.0) for row in rows) for name in parts},
        counts={name: sum(row.counts.get(name, 0.0) for row in rows) for name in parts},
    )


def less(now: Shares, then: Shares) -> Shares:
    """The time that a worker spent between two moments."""
    # a killed worker's last tick is not counted, so time may seem to go back
    busy = max(now.worked + now.preempted - then.worked - then.preempted, 0.0)
    preempted = min(max(now.preempted - then.preempted, 0.0), busy)
    return replace(
        now,
        worked=busy - preempted,
        preempted=preempted,
        starved=now.starved - then.starved,
        blocked=now.blocked - then.blocked,
        asleep=min(now.asleep - then.asleep, busy - preempted),
        done=now.done - then.done,
        parts={name: x - then.parts.get(name, 0.0) for name, x in now.parts.items()},
        counts={name: x - then.counts.get(name, 0.0) for name, x in now.counts.items()},
    )


SECONDS = tuple(f.name for f in fields(Shares) if f.type == "float")
