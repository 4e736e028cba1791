"""Framed msgpack on a unix socket: the fastest way to ask. The mode of the socket's file (0600)
decides who may ask.

A request is a frame {"op": "act" | "outcome" | "end" | "state", "n": any number, ...}, with the
fields of that message. The answer is a frame {"n": the same, "status": as in HTTP, ...}, with the
fields of a decision, or "error". Answers may come in another order than requests. After bytes that
are no frame the connection is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from equipoise import frames
from equipoise.listening import BACKLOG, listen_at
from equipoise.serving import bounds
from equipoise.serving.messages import MOST, Act, Decision, End, Outcome, Refused, decoded
from equipoise.serving.service import Service
from equipoise.web import ACCEPTS, REFUSALS

MOST_WAITING = 1024  # requests of a connection that may wait for their answer
# most frames that one turn of the loop takes up, and bytes after which it takes no more
TURN, LARGE = 64, 16 << 10


class _Act(Act, kw_only=True, tag_field="op", tag="act"):
    n: int = 0


class _Outcome(Outcome, kw_only=True, tag_field="op", tag="outcome"):
    n: int = 0


class _End(End, kw_only=True, tag_field="op", tag="end"):
    n: int = 0


class _State(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="op", tag="state"):
    n: int = 0


_decoder = msgspec.msgpack.Decoder(_Act | _Outcome | _End | _State)


class Connection(asyncio.Protocol):
    """One caller."""

    def __init__(self, server: FrameServer) -> None:
        self._server, self._service = server, server.service
        self._splitter = frames.Splitter(server.most_body)
        # held: frames wait for a turn
        self.waiting, self._paused, self._closing, self._held = 0, False, False, False
        self.began: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if len(self._server.connections) >= self._server.most_connections:
            REFUSALS.add("connections", self._server.most_connections)
            self._answer(
                {
                    "n": 0,
                    "status": 503,
                    "error": f"expected at most {self._server.most_connections} connections, got "
                    "one more",
                }
            )
            transport.close()
        else:
            self._server.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        self._bodies = self._splitter.feed(data)
        self._turn()

    def _turn(self) -> None:
        """Take up some of the received frames, and the rest in the loop's next turns, as there may
        be thousands.
        """
        loop = asyncio.get_running_loop()
        try:
            size = 0
            for count, body in enumerate(self._bodies, 1):
                self._request(body)
                size += len(body)
                if count == TURN or size > LARGE:
                    self._held = True
                    self.transport.pause_reading()
                    if self.waiting <= MOST_WAITING:  # otherwise once one is answered
                        loop.call_soon(self._again)
                    return
        except frames.BadFrame as error:
            self._answer({"n": 0, "status": 400, "error": str(error)})
            self.transport.close()
            return
        self.began = loop.time() if self._splitter.pending else None
        if self.waiting > MOST_WAITING:
            self.pause_writing()

    def _again(self) -> None:
        if self.transport.is_closing():
            return
        self._held = False
        self._turn()
        if self._held or self.transport.is_closing():
            return
        if self._closing and not self.waiting:
            self.transport.close()
        elif not self._paused:
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """Ask the caller to wait: it does not read its answers, or too many are due."""
        if not self._paused and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._paused and not self._closing and not self.transport.is_closing():
            self._paused = False
            if not self._held:
                self.transport.resume_reading()

    def _request(self, body: bytes) -> None:
        self.waiting += 1
        n = 0
        try:
            request = decoded(_decoder, body, bounds.check_msgpack, what="frame")
            n = request.n
            if isinstance(request, _Act):
                self._service.act(request, lambda decisions: self._decided(n, decisions[0]))
                return
            if isinstance(request, _Outcome):
                self._later(self._stored(n, request))
                return
            if isinstance(request, _End):
                self._service.end(request.session)
                self._done("end", {"n": n, "status": 200})
            else:
                self._done("state", {"n": n, "status": 200, **self._service.state()})
        except Refused as no:
            self._done("other", {"n": n, "status": no.status, **no.body()})

    def _decided(self, n: int, decision: Decision) -> None:
        self._done(
            "act", {"n": n, "status": 200, **{name: getattr(decision, name) for name in _FIELDS}}
        )

    async def _stored(self, n: int, outcome: Outcome) -> None:
        try:
            await self._service.stored([outcome])
            self._done("outcome", {"n": n, "status": 200})
        except Refused as no:
            self._done("outcome", {"n": n, "status": no.status, **no.body()})

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _done(self, op: str, answer: dict[str, Any]) -> None:
        self.waiting -= 1
        self._service.metrics.requests[f"uds:{op}", answer["status"]] += 1
        self._answer(answer)
        if self._held and self.waiting == MOST_WAITING:
            asyncio.get_running_loop().call_soon(self._again)
        if self._closing and not self.waiting and not self._held:
            self.transport.close()
        elif self._paused and self.waiting < MOST_WAITING // 2:
            self.resume_writing()

    def _answer(self, answer: dict[str, Any]) -> None:
        if not self.transport.is_closing():
            self.transport.write(frames.encode(answer, MOST))

    def drain(self) -> None:
        """Read no more; close after the answers that are due."""
        self._closing = True
        self.pause_writing()
        if not self.waiting and not self._held:
            self.transport.close()


_FIELDS = Decision.__struct_fields__


class FrameServer:
    """Listens on a unix socket."""

    def __init__(
        self, service: Service, *, most_body: int, most_connections: int, request_s: float
    ) -> None:
        self.service, self.most_body, self.most_connections, self._request_s = (
            service,
            most_body,
            most_connections,
            request_s,
        )
        self.connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._path: Path | None = None  # of the socket's file, while it is this server's

    async def listen(self, path: Path) -> None:
        """Raise OSError if another server listens there, or if the path is something else."""
        listening = listen_at(path)
        self._path = path
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: Connection(self), sock=listening, backlog=ACCEPTS
        )
        listening.listen(BACKLOG)  # asyncio's number also limits how many it accepts at once

    def sweep(self, now: float) -> None:
        """Close connections whose frame takes too long to arrive."""
        for one in list(self.connections):
            if one.began is not None and now - one.began > self._request_s:
                one._answer(
                    {
                        "n": 0,
                        "status": 408,
                        "error": f"frame: must be whole within {self._request_s:g} s, got a "
                        "part of it",
                    }
                )
                one.transport.close()

    def stop_listening(self) -> None:
        """Close the socket, also after it stopped listening, or never listened. Another server's
        file at the same path stays.
        """
        if self._server is not None:
            self._server.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self._server = self._path = None

    async def drain(self, until: Callable[[], bool]) -> None:
        """Answer the open requests, then close; ``until`` is the end of the time for that."""
        for one in list(self.connections):
            one.drain()
        while self.connections and not until():
            await asyncio.sleep(0.01)
        for one in list(self.connections):
            one.transport.abort()
