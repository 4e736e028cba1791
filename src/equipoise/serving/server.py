"""The server: one process that listens, serves a policy, follows the registry, and drains after a
signal.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

from equipoise import web
from equipoise.listening import BACKLOG, listen
from equipoise.serving.app import App
from equipoise.serving.frames_server import FrameServer
from equipoise.serving.guard import Guard
from equipoise.serving.service import Service
from equipoise.serving.sessions import Sessions
from equipoise.serving.settings import Settings
from equipoise.serving.store import Store
from equipoise.serving.trial import Trial
from equipoise.serving.versions import Source, Versions

log = logging.getLogger("equipoise.serving")
# between two looks at slow frames and at unused episodes
SWEEP_S = 0.25
# the longest that the loop waits for the thread that writes decisions or loads versions; Python's
# own is 5 ms
SWITCH_S = 2e-4
# after SIGTERM: the next answers send callers elsewhere, before idle connections are
# closed
QUIET_S = 0.3


class Server(web.Server):
    """Uvicorn's server, whose signals are handled by ``serve``."""

    @contextmanager
    def capture_signals(self) -> Any:
        yield


def guard_of(settings: Settings) -> Guard:
    """The guard of the server; ValueError for places that it cannot listen at, without looking at
    any policy.
    """
    guard = Guard(settings.host, settings.token, hosts=settings.hosts, origins=settings.origins)
    if settings.port is None and settings.uds is None:
        raise ValueError(
            "expected a port or a unix socket to listen on, got neither; --port N or --uds PATH"
        )
    return guard


def serve(
    source: Source, settings: Settings, started: Callable[[list[str]], None] = lambda places: None
) -> None:
    """Serve until SIGTERM or SIGINT. ``started`` gets the places to ask: URLs, and "unix:PATH".

    ValueError or OSError if that is impossible: no champion, a taken place, or other machines
    without a token.
    """
    guard = guard_of(settings)
    trial = Trial(
        settings.backend, settings.trusted, settings.batch, settings.trial_s, settings.trial_memory
    )
    versions = Versions(
        source,
        settings.policy,
        settings.rules,
        settings.backend,
        settings.threads,
        settings.trusted,
        settings.batch,
        trial=trial,
    )
    versions.start()
    try:
        asyncio.run(_serve(versions, guard, settings, started))
    finally:
        trial.close()


async def _serve(
    versions: Versions, guard: Guard, settings: Settings, started: Callable[[list[str]], None]
) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    store = Store(settings.decisions, observations=settings.observations)
    sessions = Sessions(settings.session_timeout_s, settings.most_sessions)
    seed = secrets.randbits(62) if settings.seed is None else settings.seed
    service = Service(
        versions, store, sessions, seed=seed, batch=settings.batch, deadline_ms=settings.deadline_ms
    )
    app = App(service, guard, most_body=settings.most_body)
    listeners = (settings.port is not None) + (settings.uds is not None)
    most, request_s = web.fitting(settings.most_connections, listeners), settings.request_s
    http = Server(web.config(app, most_connections=most, request_s=request_s))
    frame_server = FrameServer(
        service, most_body=settings.most_body, most_connections=most, request_s=request_s
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    places, sockets, end = [], [], loop.time()
    try:
        if settings.port is not None:
            sockets.append(listen(settings.host, settings.port))
            places.append(url_of(sockets[0]))
        if settings.uds is not None:
            await frame_server.listen(settings.uds)
            places.append(f"unix:{settings.uds}")
        serving = loop.create_task(http.serve(sockets)) if sockets else None
        versions.follow(loop)
        champion = versions.now.by_alias.get("champion")
        log.info(
            "serving",
            extra={
                "policy": settings.policy,
                "version": champion and champion.digest,
                "at": places,
                "inline": champion and champion.inline,
                "alarm": versions.alarm,
                "torch": "torch" in sys.modules,
            },
        )
        sys.setswitchinterval(SWITCH_S)
        gc.collect()
        gc.freeze()  # loaded objects stay: a full collection need not look at them
        await began(http, serving, sockets)
        started(places)
        sweeping = loop.create_task(_sweep(service, frame_server))
        await ended(stop, serving)
        end = loop.time() + settings.drain_s
        log.info("draining", extra={"waiting": len(service.batcher)})
        await _drain(service, http, frame_server, serving, end)
        sweeping.cancel()
    finally:
        for one in sockets:
            one.close()
        frame_server.stop_listening()
        versions.stop(max(0.0, end - loop.time()))
        service.batcher.close()
        service.record()
        store.close()
    log.info(
        "ended",
        extra={"decisions": sum(service.metrics.decisions.values()), "records_lost": store.lost},
    )


def url_of(listening: socket.socket) -> str:
    """Return the URL of a server's socket."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def began(
    http: Server, serving: asyncio.Task[None] | None, sockets: Sequence[socket.socket]
) -> None:
    """Wait until the web server accepts connections, or has failed."""
    while serving is not None and not http.started and not serving.done():
        await asyncio.sleep(0.005)
    for one in sockets:
        one.listen(BACKLOG)  # asyncio's number also limits how many it accepts at once


async def ended(stop: asyncio.Event, serving: asyncio.Task[None] | None) -> None:
    """Wait for a signal, or for the web server to fail."""
    told = asyncio.ensure_future(stop.wait())
    await asyncio.wait(
        [told, *([] if serving is None else [serving])], return_when=asyncio.FIRST_COMPLETED
    )
    told.cancel()


async def _drain(
    service: Service,
    http: Server,
    frame_server: FrameServer,
    serving: asyncio.Task[None] | None,
    end: float,
) -> None:
    """Take no new connections, answer what was asked, close: all before ``end``, on the loop's
    clock.
    """
    loop = asyncio.get_running_loop()
    service.draining = True
    if serving is not None:
        for server in http.servers:
            server.close()
    frame_server.stop_listening()
    quiet = min(loop.time() + QUIET_S, end)
    while loop.time() < quiet and (http.server_state.connections or frame_server.connections):
        await asyncio.sleep(0.01)
    await frame_server.drain(lambda: loop.time() > end)
    if serving is not None:
        await shut_down(http, serving, end)


async def shut_down(http: Server, serving: asyncio.Task[None], end: float) -> None:
    """End the web server when its open answers are sent, or at ``end`` on the loop's clock."""
    left = max(0.0, end - asyncio.get_running_loop().time())
    http.config.timeout_graceful_shutdown = left  # type: ignore[assignment]  # it takes fractions
    http.should_exit = True
    await serving


async def _sweep(service: Service, frame_server: FrameServer) -> None:
    """Close connections that take too long, and end unused episodes."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(SWEEP_S)
        now = loop.time()
        frame_server.sweep(now)
        service.sessions.sweep()
