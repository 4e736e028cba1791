"""What a worker may use on one machine, where runtimes share memory and doorbells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from equipoise.runtime.board import Board, Meter
from equipoise.runtime.cut import Gate
from equipoise.runtime.ipc import Ringer
from equipoise.runtime.messages import CutBegun, Linked, Message, Note, Offered, Record, Relayed
from equipoise.runtime.workerfiles import Reader
from equipoise.types import Tick, Worker
from equipoise.workers.kind import AtOnce, Member


class LocalSite:
    """``Site`` of a worker in a process of its own, or, without ``bells`` and with ``beats`` False,
    in one thread with all.
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
        bells: Mapping[str, Ringer] | None = None,
        beats: bool = True,
        at_once: AtOnce | None = None,
    ) -> None:
        """``source``: the checkpoint that the worker goes on from. ``join``: what makes a record
        whole, with the actors' part.

        ``beats``: does ``pulse`` tell the board that the worker is at work? ``at_once``: as of
        ``Site``.
        """
        self.title, self.queues, self.at_once = member.title, queues, at_once
        self._board, self._send, self._source, self._join = board, send, source, join
        self._bells, self._beats = bells or {}, beats
        self.clock, self.lags = board.clock(member.title), board.lags(member.title)
        self.meter: Meter | None = None  # once the worker ticks in a process of its own

    def load(self, worker: Worker) -> bool:
        if self._source is None:
            return False
        self._source.load(worker)
        return True

    def bell(self, title: str) -> Callable[[], object]:
        return self._bells[title].ring if self._bells else _nothing

    def note(self, text: str) -> None:
        self._send(Note(text=text))

    def pulse(self) -> None:
        if not self._beats:
            return
        if self.meter is not None:
            self.meter.add(Tick.WORKED)
        else:
            self._board.pulse(self.title)

    def record(self, record: Mapping[str, Any]) -> None:
        self._send(self._join(record))

    def cut(self) -> int:
        return int(self._board.cut["save"][0])

    def cutting(self) -> tuple[int, int, bool] | None:
        words, number = self._board.cut, self.cut()
        last = bool(words["save_last"][0] == number)
        return (number, int(words["step"][0]), last) if number > words["released"][0] else None

    def board(self, title: str) -> Mapping[str, Any]:
        return self._board.row(title)

    def relay(self, title: str, message: Mapping[str, Any]) -> None:
        self._send(Relayed(title=title, said=dict(message)))

    def linked(self, site: str, how: str) -> None:
        self._send(Linked(site=site, how=how))

    def gate(self, *, every: int, last: int, round_: int, due: Callable[[int], bool]) -> Gate:
        def announce(version: int) -> None:
            self._send(CutBegun(version=version))

        def offer(version: int) -> None:
            self._send(Offered(version=version))

        return Gate(
            self._board.cut,
            every=every,
            last=last,
            round_=round_,
            announce=announce,
            due=due,
            offer=offer,
        )


def _nothing() -> None: ...
