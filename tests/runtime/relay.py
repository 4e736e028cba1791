"""A bad network between sites and home: a TCP port that passes everything on late, and that can be
cut or fall silent.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from equipoise.runtime.cluster.host import SiteJob

CHUNK = 1 << 14  # bytes that are delayed together, at most
BETWEEN_S = 1e-6  # between two chunks, which keeps their order


class _End(asyncio.Protocol):
    """Where a connection meets the relay: what comes here goes out at ``other``, later."""

    def __init__(self, relay: Relay, other: _End | None = None) -> None:
        self._relay, self.other, self._due = relay, other, 0.0
        self.dead = False  # nothing goes on from here, ever

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.dead = self._relay.down or (self.other is not None and self.other.dead)
        self._relay.ends.add(self)
        if self.other is not None:  # home has taken the connection
            self.other.other = self
            self.other.transport.resume_reading()
            if self.other.transport.is_closing():  # it was cut meanwhile
                transport.abort()
        elif not self.dead:
            transport.pause_reading()
            self._relay.call_home(self)

    def data_received(self, data: bytes) -> None:
        self._relay.passed += len(data)
        while data:
            size = self._relay.chance.randint(1, CHUNK)
            self._later(partial(self._write, data[:size]))
            data = data[size:]

    def connection_lost(self, error: Exception | None) -> None:
        self._relay.ends.discard(self)
        self._later(self._close)

    def _write(self, chunk: bytes) -> None:
        if not self.dead and self.other is not None and not self.other.transport.is_closing():
            self.other.transport.write(chunk)

    def _close(self) -> None:
        if not self.dead and self.other is not None:
            self.other.transport.close()

    def _later(self, act: Callable[[], object]) -> None:
        """Act after a random time, and after everything before."""
        self._due = max(
            self._due + BETWEEN_S,
            self._relay.loop.time() + self._relay.chance.uniform(0.0, self._relay.most_s),
        )
        self._relay.loop.call_at(self._due, act)


class Relay:
    """Listens at ``port`` and passes on to another, each chunk after 0 to ``most_s`` seconds. A
    thread of its own does so.
    """

    def __init__(self, host: str, port: int, most_s: float = 0.0, seed: int = 0) -> None:
        self.most_s, self.chance, self.down, self.ends = (
            most_s,
            random.Random(seed),
            False,
            set[_End](),
        )
        self.passed = 0  # bytes that have come
        self._home, self._calls = (host, port), set[asyncio.Task[Any]]()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="relay")
        self._thread.start()
        self._server = self._do(self.loop.create_server(lambda: _End(self), host, 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def call_home(self, end: _End) -> None:
        call = self.loop.create_task(self._call_home(end))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _call_home(self, end: _End) -> None:
        try:
            await self.loop.create_connection(lambda: _End(self, end), *self._home)
        except OSError:  # nobody is at home
            end.transport.abort()

    def cut(self) -> None:
        """Break all connections, which both ends are told. The next ones are taken."""

        async def cut() -> None:
            for end in self.ends:
                end.dead = True
                end.transport.abort()

        self._do(cut())

    def fall_silent(self) -> None:
        """Swallow everything from now on, and tell nobody. What was connected before never speaks
        again.
        """

        async def fall_silent() -> None:
            self.down = True
            for end in self.ends:
                end.dead = True

        self._do(fall_silent())

    def speak(self) -> None:
        """Pass on the connections that are made from now on."""

        async def speak() -> None:
            self.down = False

        self._do(speak())

    def close(self) -> None:
        async def close() -> None:
            self._server.close()
            for call in self._calls:
                call.cancel()
            while self.ends or self._calls:
                for end in self.ends:
                    end.dead = True
                    end.transport.abort()
                await asyncio.sleep(0)

        self._do(close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60.0)


class Relays:
    """A relay for each site, by name. ``route``: the job of a site that finds home behind its
    relay.
    """

    def __init__(self, most_s: float = 0.0, seed: int = 0) -> None:
        self._most_s, self._seed, self._made = most_s, seed, dict[str, Relay]()

    def route(self, job: SiteJob) -> SiteJob:
        if job.name not in self._made:
            self._made[job.name] = Relay(
                job.home.address, job.home.port, self._most_s, self._seed + len(self._made)
            )
        return replace(job, home=replace(job.home, port=self._made[job.name].port))

    def __getitem__(self, name: str) -> Relay:
        return self._made[name]

    @property
    def passed(self) -> int:
        """The bytes that have come to all of them."""
        return sum(relay.passed for relay in self._made.values())

    def close(self) -> None:
        for relay in self._made.values():
            relay.close()
