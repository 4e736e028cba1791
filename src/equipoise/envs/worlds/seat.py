"""A seat: one stream's place for a world. Sequence numbers, answers that are sent again, and how
long the world is silent.

The world numbers its observations; each is answered once it may go on, and the next comes only
then. So at most one is under way, and numbers alone reveal a message that is lost, doubled or late
on a connection, or between two:

| an observation's number | it is | what becomes of it |
|---|---|---|
| the last one + 1 | the next | taken; where it ends an episode it is answered at once, since nothing is to be decided |
| the last one | sent again | its answer is sent again, if there is one |
| less | late | dropped |
| more | of a world that did not wait | refused |
"""  # noqa: E501

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
from collections import deque

from equipoise.envs.worlds.protocol import VERSION, Refused, check_observe
from equipoise.frames import BadFrame, Message, Splitter, decode, encode

SEND_S = 2.0  # that a world may leave what it is sent unread
AT_ONCE = 1 << 16  # bytes


class Seat:
    """The caller reads (``read``) and answers; another thread calls ``beat``."""

    def __init__(self, most: int) -> None:
        """``most`` bytes of a frame."""
        self._most = most
        self._splitter = Splitter(most)
        self._lock = threading.Lock()  # of what is sent
        self.conn: socket.socket | None = None
        self.session: str | None = None  # None: no world
        self.name = "no world"
        self.dealt = 0  # worlds and connections so far
        self.begun = 0  # sessions so far
        # observations that were not taken: at most an end and a first one
        self.rows: deque[Message] = deque()
        self.heard = time.monotonic()
        self.away = False  # no world for longer than its grace: other streams do not wait for it
        self._seen = self._answered = -1
        self._answer = b""
        # sent in every welcome: the session's random name, the stream and the seed
        self._life: Message = {}
        self._after_end = True  # only a first observation may come

    def connect(
        self,
        conn: socket.socket,
        session: str,
        name: str,
        *,
        stream: int,
        seed: int,
        times: Message,
    ) -> None:
        """A world takes the seat, with this ``seed``, or comes again and goes on at its place."""
        self.disconnect()
        if session != self.session:
            self.session, self.begun = session, self.begun + 1
            self._life = {"life": secrets.token_hex(8), "stream": stream, "seed": seed}
            self._seen = self._answered = -1
            self._after_end = True
        self.name = name
        conn.setblocking(False)
        self._splitter = Splitter(self._most)
        self.heard = time.monotonic()
        with self._lock:
            self.conn = conn
        self._send(
            encode(
                {"kind": "welcome", "version": VERSION, "seen": self._seen, **self._life, **times}
            )
        )

    def read(self) -> None:
        """Take what has come, if there is anything. ``Refused``: the world must leave."""
        conn = self.conn
        if conn is None:
            return
        try:
            data = conn.recv(AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.disconnect()
            return
        self.heard = time.monotonic()
        try:
            for body in self._splitter.feed(data):
                self._take(decode(body))
                if self.conn is not conn:
                    return
        except BadFrame as error:
            raise Refused("frame", str(error)) from error

    def _take(self, message: Message) -> None:
        kind = message.get("kind")
        if kind == "observe":
            self._observe(message)
        elif kind == "bye":
            self.leave()
        elif kind not in ("beat", "hello"):  # a hello may be doubled
            raise Refused(
                "frame", f"expected the kind observe, beat or bye, got {str(kind)[:40]!r}"
            )

    def _observe(self, message: Message) -> None:
        seq = message.get("seq")
        if not isinstance(seq, int) or seq > self._seen + 1 or seq < 0:
            raise Refused(
                "gap",
                f"observe.seq: expected {self._seen + 1}, after {self._seen}, got {str(seq)[:40]}",
            )
        if seq <= self._seen:
            if seq == self._answered == self._seen:
                self._send(self._answer)
            return
        if self._answered != self._seen:
            raise Refused(
                "gap", f"observe.seq: expected none before {self._seen} is answered, got {seq}"
            )
        check_observe(message, self._after_end)
        self._seen = seq
        self._after_end = bool(message.get("terminated") or message.get("truncated"))
        message["session"] = self.begun
        self.rows.append(message)
        self.away = False
        if self._after_end:
            self.answer({})

    @property
    def asks(self) -> bool:
        """Does the world wait for an answer to an observation that was taken?"""
        return self.session is not None and self._answered < self._seen and not self.rows

    def answer(self, what: Message) -> None:
        """Answer the last observation."""
        self._answered = self._seen
        self._answer = encode({"kind": "act", "seq": self._seen, **what})
        self._send(self._answer)

    def lose(self) -> None:
        """Answer the last observation: its episode is given up, and another is to begin."""
        self._after_end = True
        self.answer({"lost": True})

    def beat(self) -> None:
        """Send a sign of life, and the numbers of this side."""
        self._send(encode({"kind": "beat", "seen": self._seen, "answered": self._answered}))

    def refuse(self, refused: Refused) -> None:
        """Send the world the reason why it has to go; its session ends."""
        self._send(encode(refused.message))
        self.leave()

    def leave(self) -> None:
        """The session ends: the world has gone for good, but earlier messages still count."""
        self.disconnect()
        self.session, self._after_end = None, True

    def disconnect(self) -> None:
        """Let go of the connection; the world may come again."""
        with self._lock:
            conn, self.conn = self.conn, None
        if conn is not None:
            conn.close()

    def _send(self, frame: bytes) -> None:
        with self._lock:
            if (conn := self.conn) is not None:
                try:
                    if (sent := conn.send(frame)) < len(frame):
                        self._send_slowly(conn, frame[sent:])
                except BlockingIOError:
                    self._send_slowly(conn, frame)
                except OSError:
                    _shut(conn)

    def _send_slowly(self, conn: socket.socket, frame: bytes) -> None:
        try:
            conn.settimeout(SEND_S)
            conn.sendall(frame)
            conn.setblocking(False)
        except OSError:
            _shut(conn)


def _shut(conn: socket.socket) -> None:
    """Shut a connection: the next ``read`` raises, and the world connects again or is given up."""
    with contextlib.suppress(OSError):
        conn.shutdown(socket.SHUT_RDWR)
