"""The services for a worker on one machine, where runtimes share memory and doorbells."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from equipoise.runtime.board import Board, Meter
from equipoise.runtime.cut import Gate
from equipoise.runtime.ipc import Ringer
from equipoise.runtime.messages import CutBegun, Message, Note, Offered, Record
from equipoise.runtime.workerfiles import Reader
from equipoise.types import Tick, Worker
from equipoise.workers.kind import AtOnce, Member


class LocalSite:
    """``Site`` of a worker in a process of its own, or, without ``bells``, in one thread with all
    others.
    """

    def __init__(
        self,
        member: Member,
        board: Board,
        send: Callable[[Message], object],
        *,
        queues: Any,
        source: Reader | None,
        join: Callable[[Mapping[str, Any]], Record],
        bells: Mapping[Hashable, Ringer] | None = None,
        at_once: AtOnce | None = None,
    ) -> None:
        """``source``: the checkpoint that the worker goes on from. ``join``: the function that
        makes a record whole, with the actors' part. ``at_once``: as of ``Site``.
        """
        self.title, self.queues, self.at_once = member.title, queues, at_once
        self.board, self.send, self._source, self._join = board, send, source, join
        self._bells = bells
        self.clock, self.lags = board.clock(member.title), board.lags(member.title)
        self.meter: Meter | None = None  # once the worker ticks in a process of its own

    def load(self, worker: Worker) -> bool:
        if self._source is None:
            return False
        self._source.load(worker)
        return True

    def bell(self, key: Hashable) -> Callable[[], object]:
        return self._bells[key].ring if self._bells else _nothing

    def note(self, text: str) -> None:
        self.send(Note(text=text))

    def pulse(self) -> None:
        if self._bells is None:  # its turns are the driver's own
            return
        if self.meter is not None:
            self.meter.add(Tick.WORKED)
        else:
            self.board.pulse(self.title)

    def record(self, record: Mapping[str, Any]) -> None:
        self.send(self._join(record))

    def cut(self) -> int:
        return int(self.board.cut["save"][0])

    def gate(self, *, every: int, last: int, round_: int, due: Callable[[int], bool]) -> Gate:
        def announce(version: int) -> None:
            self.send(CutBegun(version=version))

        def offer(version: int) -> None:
            self.send(Offered(version=version))

        return Gate(
            self.board.cut,
            every=every,
            last=last,
            round_=round_,
            announce=announce,
            due=due,
            offer=offer,
        )


def _nothing() -> None: ...
