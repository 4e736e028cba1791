"""A line: one end of the sessions between a site and home. It uses only the given transport and the
given clock.

A *session* is a stretch of time in which no message was lost: each end numbers what it sends, and a
message of another session, or with a number that does not follow, is refused. Each fault ends the
session, and the next begins from both ends' own states. So no end has to ask what the other has
received.

A large body, such as weights, takes longer than ``SILENT_S`` on a slow link. It is sent in pieces,
of which few are under way: each shows that the sender lives, and they never are a flood. Later
messages wait for it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from equipoise.runtime.cluster.frames import Beat, Body, Kind, Message, Piece, Taken, made
from equipoise.runtime.cluster.wire import AT_ONCE, PIECE, Frame, Refused, Tally, parse

BEAT_S = 0.5
SILENT_S = 5.0  # after which the other end counts as gone
PIECES = 16  # of bodies, that are under way


class Link(Protocol):
    """A way to the other end. Messages come whole and in order, or not at all. Nothing blocks."""

    # False: the other end is not there; the message is lost
    def send(self, head: bytes, body: Body) -> bool: ...
    def receive(self) -> tuple[Body, Body] | None: ...  # head and body, if a message has come
    def closed(self) -> bool: ...  # has a connection ended since the last call?


@dataclass(slots=True)
class _Waiting:
    """A message that is still to be sent, wholly or in part."""

    message: Message
    body: memoryview  # the rest of it


class Line:
    """``session`` is 0 while there is none."""

    def __init__(
        self,
        link: Link,
        most: Mapping[Kind, int],
        silent_s: float = SILENT_S,
        refused: Tally | None = None,
    ) -> None:
        """``most``: the accepted kinds, and the most bytes of each. ``silent_s``: as ``SILENT_S``.
        ``refused``: messages that were not taken.
        """
        self.link, self._most, self.silent_s = link, most, silent_s
        self.session = 0
        self.refused = Tally() if refused is None else refused
        # sessions that are over, from which messages have come; the owner empties it
        self.late: list[int] = []
        self.moved: Counter[str] = Counter()  # bytes of bodies, by kind
        self._sent = self._received = 0
        self._waiting: deque[_Waiting] = deque()
        self._under_way = 0  # pieces that the other end has not taken yet
        self._pieces: list[Body] = []  # received pieces of an incomplete message
        self._size, self._largest = 0, max(most.values())  # of those pieces; of any body
        self._heard_at = self._said_at = 0.0

    @property
    def full(self) -> bool:
        """Does a message wait, until the other end has taken pieces of an earlier one?"""
        return bool(self._waiting)

    def begin(self, session: int, now: float) -> None:
        self.end()
        self.session, self._sent, self._received = session, 0, 0
        self._heard_at = self._said_at = now
        self.link.closed()  # an earlier end is not the end of this session

    def end(self) -> None:
        self.session = self._under_way = self._size = 0
        self._waiting.clear()
        self._pieces.clear()

    def send(self, message: Message) -> None:
        """Send in the session, if there is one; a message that is lost on its way ends it, sooner
        or later.
        """
        if not self.session:
            return
        view = memoryview(message.body).cast("B")
        if message.kind in AT_ONCE or (not self._waiting and view.nbytes <= PIECE):
            self._send(message, view)
            return
        waits = _Waiting(message, view)
        self._waiting.append(waits)
        self._go_on()
        # its memory is the caller's again
        if self._waiting and not isinstance(message.body, bytes):
            waits.body = memoryview(bytes(waits.body))

    def _go_on(self) -> None:
        """Send what waits, as far as it may be under way."""
        while self._waiting and self.session:
            one = self._waiting[0]
            while len(one.body) > PIECE:
                if self._under_way == PIECES or not self.session:
                    return
                self._under_way += 1
                self._send(Piece(), one.body[:PIECE], of=one.message.kind)
                one.body = one.body[PIECE:]
            self._waiting.popleft()
            self._send(one.message, one.body)

    def _send(self, message: Message, body: memoryview, of: Kind | None = None) -> None:
        self._sent += 1
        self.moved[(of or message.kind).name] += body.nbytes
        if not self.link.send(message.head(self.session, self._sent), body):
            self.end()

    def outside(self, message: Message) -> None:
        """Send what belongs to no session."""
        self.link.send(message.head(), message.body)

    def receive(self, now: float) -> Frame | None:
        """The next message: of the session and in its order, or one of no session; None: nothing
        has come.
        """
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
                self.end()
                continue
            self._received += 1
            self._heard_at = now
            try:
                whole = self._whole(frame)
            except Refused as error:
                self.refused.add(error.reason)
                self.end()
                continue
            if whole is not None:
                self.moved[whole.kind.name] += memoryview(whole.message.body).nbytes
                return whole
        return None

    def _whole(self, frame: Frame) -> Frame | None:
        """The message with its pieces; None if this is only a piece, or empty."""
        if frame.kind is Kind.BEAT:
            return None
        if frame.kind is Kind.TAKEN:
            if not self._under_way:
                raise Refused("taken: expected one for each piece sent, got one more")
            self._under_way -= 1
            self._go_on()
            return None
        if frame.kind is not Kind.PIECE and (not self._pieces or frame.kind in AT_ONCE):
            return frame
        self._pieces.append(frame.message.body)
        self._size += len(frame.message.body)
        most = self._largest if frame.kind is Kind.PIECE else self._most[frame.kind]
        if self._size > most:
            raise Refused(
                f"{frame.kind.name}: expected at most {most:,} bytes in all, got {self._size:,}",
                "too large",
            )
        if frame.kind is Kind.PIECE:
            self.send(Taken())
            return None
        body = b"".join(self._pieces)
        self._size = 0
        self._pieces.clear()
        return Frame(frame.session, frame.number, made(frame.kind, frame.message.numbers, body))

    def beat(self, now: float) -> bool:
        """Send a sign of life now and then -> is the session still one? A silent or closed one is
        over.
        """
        if self.link.closed() or now - self._heard_at > self.silent_s:
            self.end()
        if self.session and now - self._said_at >= BEAT_S:
            self._said_at = now
            self.send(Beat())
        return bool(self.session)
