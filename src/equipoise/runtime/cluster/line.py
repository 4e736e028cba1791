"""A line: one end of the sessions between a site and home. It knows no transport and no clock but those that it is given.

A *session* is a stretch of time in which no message was lost: each end numbers what it sends, and a message of another
session, or with a number that does not follow, is refused. Each fault ends the session, and the next begins from what
both ends know by themselves. So no end has to ask what the other has received.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

from equipoise.runtime.cluster.wire import Frame, Kind, Refused, Tally, parse

BEAT_S = 0.5
SILENT_S = 5.0  # after which the other end counts as gone


class Link(Protocol):
    """A way to the other end. Messages come whole and in order, or not at all. Nothing blocks."""

    def send(self, head: bytes, body: Any) -> bool: ...  # False: the other end is not there; the message is lost
    def receive(self) -> tuple[Any, Any] | None: ...  # head and body; None: nothing has come
    def closed(self) -> bool: ...  # has a connection ended since the last call?


class Line:
    """``session`` is 0 while there is none."""

    def __init__(
        self, link: Link, most: Mapping[Kind, int], silent_s: float = SILENT_S, refused: Tally | None = None
    ) -> None:  # fmt: skip
        """``most``: what may come, and the most bytes of each kind. ``silent_s``: as ``SILENT_S``. ``refused``: messages that
        were not taken.
        """
        self.link, self._most, self.silent_s = link, most, silent_s
        self.session = 0
        self.refused = Tally() if refused is None else refused
        self.late: list[int] = []  # sessions that are over, from which messages have come; the owner empties it
        self.moved: Counter[str] = Counter()  # bytes of bodies, by kind
        self._sent = self._received = 0
        self._heard_at = self._said_at = 0.0

    def begin(self, session: int, now: float) -> None:
        self.session, self._sent, self._received = session, 0, 0
        self._heard_at = self._said_at = now
        self.link.closed()  # what ended before is no end of this session

    def end(self) -> None:
        self.session = 0

    def send(self, kind: Kind, a: int = 0, b: int = 0, c: int = 0, body: Any = b"") -> None:
        """Send in the session, if there is one; a message that is lost on its way ends it, sooner or later."""
        if not self.session:
            return
        self._sent += 1
        self.moved[kind.name] += memoryview(body).nbytes
        if not self.link.send(Frame(kind, self.session, self._sent, a, b, c).head, body):
            self.session = 0

    def outside(self, kind: Kind, a: int = 0, b: int = 0, body: Any = b"") -> None:
        """Send what belongs to no session."""
        self.link.send(Frame(kind, 0, 0, a, b).head, body)

    def receive(self, now: float) -> Frame | None:
        """The next message: of the session and in its order, or one of no session; None: nothing has come."""
        while (found := self.link.receive()) is not None:
            try:
                frame = parse(*found, self._most)
            except Refused as error:
                self.refused.add(error.reason)
                continue
            if frame.session == 0:
                return frame
            if frame.session != self.session:
                self.refused.add("another session")
                self.late.append(frame.session)
                continue
            if frame.number != self._received + 1:
                self.refused.add("out of order")
                self.session = 0
                continue
            self._received += 1
            self._heard_at = now
            self.moved[frame.kind.name] += memoryview(frame.body).nbytes
            if frame.kind is not Kind.BEAT:
                return frame
        return None

    def beat(self, now: float) -> bool:
        """Say now and then that this end lives -> is the session still one? A silent or closed one is over."""
        if self.link.closed() or now - self._heard_at > self.silent_s:
            self.session = 0
        if self.session and now - self._said_at >= BEAT_S:
            self._said_at = now
            self.send(Kind.BEAT)
        return bool(self.session)
