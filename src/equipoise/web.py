"""HTTP/1.1 with limits: how long a request may take to arrive, how many connections there may be.
For servers on uvicorn.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import time
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from equipoise.private.h11 import watched

log = logging.getLogger("equipoise.web")
# connections that asyncio takes in one turn of its loop: those beyond the bound are open for a turn
ACCEPTS = 16
SPARE = 32  # descriptors that a server keeps for files: of decisions, and of versions that it loads
FEWEST = 4  # connections that a server needs to be of use


class Refusals:
    """Lines of a log about connections that are refused: one a second, with their number."""

    def __init__(self) -> None:
        self._count, self._next = 0, 0.0

    def add(self, what: str, most: int) -> None:
        self._count += 1
        if (now := time.monotonic()) >= self._next:
            log.warning(f"{what} are refused", extra={"most": most, "refused": self._count})
            self._count, self._next = 0, now + 1.0


def fitting(most: int, listeners: int) -> int:
    """How many connections, at most ``most``, each listener may have so that the descriptors of
    this process suffice.

    The soft limit of descriptors is raised as far as the hard one allows; OSError if that is too
    few for any use.
    """
    import resource  # not on Windows, where worlds also listen

    open_now = len(os.listdir("/dev/fd")) if os.path.isdir("/dev/fd") else 2 * SPARE
    beside = open_now + SPARE + listeners * (ACCEPTS + 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = beside + listeners * most
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if raised > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    fit = (
        most if soft == resource.RLIM_INFINITY else min(most, (soft - beside) // max(1, listeners))
    )
    if fit < min(most, FEWEST):
        raise OSError(
            errno.EMFILE,
            f"expected a limit of at least {beside + listeners * FEWEST} open files (ulimit -n), "
            f"got {soft}",
        )
    if fit < most:
        log.warning(
            "fewer connections than asked for",
            extra={"most": fit, "asked": most, "open_files": soft},
        )
    return fit


PHRASES = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
MOST_HEADERS = 32 << 10  # bytes of a request line and its headers
MOST_LINES = 256  # of them
# least mean bytes of a body's parts, once it has more parts than the second
SMALLEST_CHUNK, FREE_CHUNKS = 64, 1000
# parts of a body that are read in one turn of the loop: Uvicorn joins those of a turn by copying
CHUNKS_PER_TURN = 256
REFUSALS = Refusals()
ARRIVED = (h11.DONE, h11.MUST_CLOSE, h11.CLOSED)
BETWEEN = (h11.IDLE, h11.DONE)  # states of a caller that has sent nothing more


class HeadWithBody:
    """A transport that keeps the head of an answer until its body comes, so that one packet has
    both.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._head = transport, b""
        self.is_closing, self.get_extra_info = transport.is_closing, transport.get_extra_info
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading

    def write(self, data: bytes) -> None:
        # 100: the caller waits for it
        if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 1"):
            self._head += data
        else:
            self._transport.write(self._head + data if self._head else data)
            self._head = b""

    def close(self) -> None:
        if self._head:
            self.write(b"")
        self._transport.close()


class TooLong(h11.RemoteProtocolError):
    """The error of headers beyond their bounds."""


def bound(data: bytearray) -> None:
    """Raise ``TooLong`` for headers (and trailers) beyond their bounds, even if they came in one
    piece.
    """
    end = data.find(b"\n\r\n", 0, MOST_HEADERS + 3)
    if end < 0:  # another form of the end, or no end yet: then these bytes are all headers
        end = min(len(data), MOST_HEADERS + 1)
    if end > MOST_HEADERS or data.count(b"\n", 0, end) > MOST_LINES:
        raise TooLong(
            f"headers of at most {MOST_HEADERS:,} bytes in at most {MOST_LINES} lines",
            error_status_hint=431,
        )


class LimitedProtocol(H11Protocol):
    """Uvicorn's protocol on h11, which has the time at which the arriving request began."""

    most_connections = 1024
    request_s = 10.0

    chunks = size = 0  # of the body that is arriving
    chunks_of_turn = 0
    # loop time of the first byte (or of the connection) of a request that is not whole yet
    began: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(HeadWithBody(transport))  # type: ignore[arg-type]
        self._received = watched(self.conn, bound)
        self.conn.next_event = self._next_event  # type: ignore[method-assign]
        self.began = self.loop.time()
        if len(self.connections) > self.most_connections:
            REFUSALS.add("connections", self.most_connections)
            self.refuse(503, f"expected at most {self.most_connections} connections, got one more")

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.began is None:
            self.began = self.loop.time()
        if self.chunks_of_turn < CHUNKS_PER_TURN:
            self.chunks_of_turn = 0
        super().data_received(data)
        if self.conn.their_state in ARRIVED:
            self.began = None

    def _go_on(self) -> None:
        """Read what the last turn of the loop left."""
        self.chunks_of_turn = 0
        if self.transport.is_closing():
            return
        self.handle_events()
        if self.conn.their_state in ARRIVED:
            self.began = None
        if self.chunks_of_turn < CHUNKS_PER_TURN and not self.flow.read_paused:
            self.transport.resume_reading()

    def _next_event(self) -> Any:
        """The next event of h11. Headers, and parts of a body, that would take too long to read are
        refused here.

        So is what h11 cannot read: Uvicorn would log a line about each such request.
        """
        if not self._received and self.conn.their_state in BETWEEN:
            return h11.NEED_DATA  # h11 would also find it, in more time
        if self.chunks_of_turn >= CHUNKS_PER_TURN:
            return h11.NEED_DATA  # the next turn goes on
        try:
            event = h11.Connection.next_event(self.conn)
        except TooLong:
            return self._refused(
                431,
                f"headers: expected at most {MOST_HEADERS:,} bytes in at most {MOST_LINES} lines, "
                "got more",
            )
        except h11.RemoteProtocolError:
            return self._refused(
                400,
                f"request: expected HTTP/1.1 with headers of at most {MOST_HEADERS:,} bytes, got "
                "other bytes",
            )
        if type(event) is h11.Data:  # isinstance takes an ABC's long way
            self.chunks, self.size = self.chunks + 1, self.size + len(event.data)
            self.chunks_of_turn += 1
            if self.chunks_of_turn == CHUNKS_PER_TURN:
                self.transport.pause_reading()
                self.loop.call_soon(self._go_on)
            if self.chunks > FREE_CHUNKS and self.size < SMALLEST_CHUNK * self.chunks:
                return self._refused(
                    400,
                    f"body: expected parts of at least {SMALLEST_CHUNK} bytes, got {self.chunks:,} "
                    "smaller ones",
                )
        elif type(event) is h11.Request:
            self.chunks = self.size = 0
        return event

    def _refused(self, status: int, sentence: str) -> Any:
        if not self.transport.is_closing():
            self.refuse(status, sentence)
        return h11.NEED_DATA

    def _should_upgrade(self) -> bool:
        """Return False: there is no other protocol here, and no line in the log for a request of
        one.
        """
        return False

    def refuse(self, status: int, sentence: str) -> None:
        """Answer without the application if nothing was answered yet, and close."""
        cycle: Any = self.cycle  # the last one: it may be over
        answering = cycle is not None and cycle.response_started and not cycle.response_complete
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not answering:
            body = json.dumps({"error": sentence}).encode()
            head = (
                f"HTTP/1.1 {status} {PHRASES[status]}\r\ncontent-type: "
                "application/json\r\nconnection: close\r\n"
            )
            self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()

    def sweep(self, now: float) -> None:
        """Close a connection whose request takes too long to arrive."""
        if (
            self.began is not None
            and now - self.began > self.request_s
            and not self.transport.is_closing()
        ):
            self.refuse(
                408, f"request: must be whole within {self.request_s:g} s, got a part of it"
            )


class Chunks:
    """Further parts of an answer whose head and first part were sent: each is one write, at once.

    Uvicorn's ``send`` gives the same bytes, with more work and a turn of the loop.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @classmethod
    def of(cls, send: Callable[..., object]) -> Chunks | None:
        """Return the parts of the answer that ``send`` sends; None if they have another form."""
        cycle = getattr(send, "__self__", None)
        if not isinstance(cycle, RequestResponseCycle) or cycle.scope["http_version"] != "1.1":
            return None
        return cls(cycle)

    def write(self, data: bytes) -> bool:
        """Write a part; False if the caller reads too slowly or has left, and ``send`` waits."""
        cycle = self._cycle
        if (
            cycle.flow.write_paused
            or cycle.disconnected
            or cycle.response_complete
            or not cycle.response_started
            or not data
        ):
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True


IDLE_S = 75  # an HTTP connection that asks nothing is closed


class Server(uvicorn.Server):
    """Uvicorn's server, which looks at its connections ten times a second."""

    async def on_tick(self, counter: int) -> bool:
        now = asyncio.get_running_loop().time()
        for connection in list(self.server_state.connections):
            connection.sweep(now)  # type: ignore[union-attr]
        return await super().on_tick(counter)


def config(app: Any, *, most_connections: int = 256, request_s: float = 10.0) -> Config:
    """Uvicorn's configuration: this protocol, no websockets, and logging as the process has it."""
    limits = {"most_connections": most_connections, "request_s": request_s}
    return Config(
        app,
        http=type("Protocol", (LimitedProtocol,), limits),
        ws="none",
        loop="asyncio",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=IDLE_S,
        backlog=ACCEPTS,
        h11_max_incomplete_event_size=MOST_HEADERS,
    )
