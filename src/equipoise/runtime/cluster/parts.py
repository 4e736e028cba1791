"""What the workers of a site count, of which home has a copy: their episodes, and their rows of the board.

Home and every site list the same parts in the same order, so that a number names one. Each has one writer: the worker at the
site, and at home the proxy.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from equipoise.workers.kind import Member
from equipoise.workers.shared import Shared


class Part(Protocol):
    """Some numbers of one worker, or of one group of envs."""

    nbytes: int

    def read(self) -> bytes: ...
    def write(self, data: Any) -> None: ...  # of ``nbytes``


class Bytes:
    """Memory that is copied as it is."""

    def __init__(self, buffer: Any) -> None:
        self._view = np.frombuffer(buffer, np.uint8)
        self.nbytes = len(self._view)

    def read(self) -> bytes:
        return self._view.tobytes()

    def write(self, data: Any) -> None:
        self._view[:] = np.frombuffer(data, np.uint8)


class BoardRow:
    """A worker's row of the board, without the flag of its doorbell. The time of the last sign is sent as an age, since two
    machines have two clocks.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._touched = fields["touched_s"]
        self._rest = [array for name, array in fields.items() if name not in ("sleeping", "touched_s")]
        self.nbytes = 8 + sum(array.nbytes for array in self._rest)

    def read(self) -> bytes:
        age = np.array([time.perf_counter() - self._touched[0]])
        return b"".join(array.tobytes() for array in (age, *self._rest))

    def write(self, data: Any) -> None:
        self._touched[0] = time.perf_counter() - float(np.frombuffer(data, np.float64, 1)[0])
        at = 8
        for array in self._rest:
            array[:] = np.frombuffer(data, array.dtype, len(array), at)
            at += array.nbytes


@dataclass(frozen=True, slots=True)
class Place:
    """Where a part belongs: to a group of envs, or to the worker of this title."""

    part: Part
    group: int | None = None
    title: str | None = None


def parts(shared: Shared, rows: Mapping[str, Mapping[str, Any]], members: Sequence[Member]) -> dict[int, Place]:
    """The parts of a run by number. ``members``: of the whole run; ``rows``: of the board, of those that are here."""
    found: list[Place | None] = []
    for policy in shared.policies.values():
        for memory in ([one.memory for one in policy.episodes], [one.memory for one in policy.rounding]):
            found += [Place(Bytes(one.buffer), group=group) for group, one in enumerate(memory)]
    for title in (member.title for member in members if member.kind.side == "sampling"):
        found.append(Place(BoardRow(rows[title]), title=title) if title in rows else None)
    return {number: place for number, place in enumerate(found) if place is not None}
