"""A server in this thread, without sockets: bytes in, an answer out, and how long one turn of the
loop took, in CPU time.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from uvicorn.server import ServerState

from equipoise import frames, web
from equipoise.serving.app import App
from equipoise.serving.frames_server import Connection, FrameServer
from equipoise.serving.guard import Guard
from equipoise.serving.openapi import openapi
from equipoise.serving.service import Service
from equipoise.serving.sessions import Sessions
from equipoise.serving.settings import Rules
from equipoise.serving.store import Store
from equipoise.serving.versions import Versions
from tests.serving.servers import registry

PIECE = 1 << 18  # bytes that asyncio gives a protocol at once
MOST_BODY = 8 << 20


class WatchedLoop(asyncio.SelectorEventLoop):
    """Keeps the CPU seconds of its longest turn. Another process that has the core does not
    lengthen it, nor does a collection of garbage, which here is that of all tests.
    """

    longest = 0.0

    def __init__(self) -> None:
        super().__init__()
        self._collected = self._began = 0.0
        gc.callbacks.append(self._collects)

    def _collects(self, phase: str, _: Any) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            self._collected += time.thread_time() - self._began

    def _run_once(self) -> None:
        began, collected = time.thread_time(), self._collected
        super()._run_once()  # type: ignore[misc]
        self.longest = max(self.longest, time.thread_time() - began - (self._collected - collected))

    def close(self) -> None:
        if self._collects in gc.callbacks:
            gc.callbacks.remove(self._collects)
        super().close()


class Line(asyncio.Transport):
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.got, self.closed, self.paused = bytearray(), False, False

    def write(self, data: Any) -> None:
        self.got += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Served:
    """One policy. ``http`` and ``frame`` return (status, answer); ``longest`` is of the last of
    them.
    """

    def __init__(self, policy: str = "mask", most_sessions: int = 100) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="equipoise-served-")
        self.loop, folder = WatchedLoop(), Path(self._folder.name)
        made, self.policy = registry(folder, **{policy: 1}), policy
        self.store = Store(folder / "decisions")

        async def make() -> None:
            versions = Versions(made, policy, Rules())
            versions.start()
            self.service = Service(versions, self.store, Sessions(60.0, most_sessions), seed=1)
            self.app = App(self.service, Guard("127.0.0.1"), most_body=MOST_BODY)
            self.frames = FrameServer(
                self.service, most_body=MOST_BODY, most_connections=10, request_s=10.0
            )
            self.openapi = openapi(self.service)

        self.loop.run_until_complete(make())
        self._config = web.config(self.app)
        self._config.load()
        gc.collect()
        # as the server does: what the tests have loaded is not looked at again within a turn
        gc.freeze()

    def http(self, data: bytes) -> tuple[int, Any]:
        return self.loop.run_until_complete(self._http(data))

    def frame(self, data: bytes) -> tuple[int, Any]:
        return self.loop.run_until_complete(self._frame(data))

    def settle(self) -> None:
        """Wait until nothing waits for the disk."""

        async def wait() -> None:
            while self.store.waiting:
                await asyncio.sleep(0.002)

        self.loop.run_until_complete(wait())

    async def _feed(self, protocol: Any, line: Line, data: bytes) -> None:
        protocol.connection_made(line)
        await asyncio.sleep(0)
        self.loop.longest = 0.0
        for at in range(0, len(data), PIECE):
            while line.paused and not line.closed:
                await asyncio.sleep(0)
            if line.closed:
                return
            protocol.data_received(data[at : at + PIECE])
            await asyncio.sleep(0)

    async def _http(self, data: bytes) -> tuple[int, Any]:
        line, state = Line(), ServerState()
        protocol = self._config.http_protocol_class(
            config=self._config, server_state=state, app_state={}
        )  # type: ignore[call-arg]
        await self._feed(protocol, line, data)
        try:
            while True:
                head, found, body = bytes(line.got).partition(b"\r\n\r\n")
                if found:
                    headers = dict(one.lower().split(b": ", 1) for one in head.split(b"\r\n")[1:])
                    size = int(headers.get(b"content-length", 0))
                    if len(body) >= size:
                        body = body[:size]
                        said = (
                            json.loads(body)
                            if headers.get(b"content-type") == b"application/json" and body
                            else body
                        )
                        return int(head.split()[1]), said
                if line.closed:
                    return 0, bytes(line.got)
                await asyncio.sleep(0)
        finally:
            protocol.connection_lost(None)
            await asyncio.sleep(0)

    async def _frame(self, data: bytes) -> tuple[int, Any]:
        line = Line()
        connection = Connection(self.frames)
        await self._feed(connection, line, data)
        try:
            while True:
                if len(line.got) >= 4 and len(line.got) >= 4 + int.from_bytes(line.got[:4], "big"):
                    said = frames.decode(
                        bytes(line.got[4 : 4 + int.from_bytes(line.got[:4], "big")])
                    )
                    return said["status"], said
                if line.closed:
                    return 0, None
                await asyncio.sleep(0)
        finally:
            line.closed = True
            connection.connection_lost(None)
            await asyncio.sleep(0)


@functools.cache
def served(policy: str = "mask") -> Served:
    """One for the tests of a process, since a policy takes a while to make."""
    return Served(policy)
