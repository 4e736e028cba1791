"""The process of a server: it listens, answers, follows newer weights, and ends after a signal."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import sys
from collections.abc import Callable

import torch

from equipoise import web
from equipoise.listening import listen
from equipoise.serving.chat.app import App
from equipoise.serving.chat.model import Model
from equipoise.serving.chat.service import Service
from equipoise.serving.chat.settings import TextSettings
from equipoise.serving.chat.versions import Source, VersionedService
from equipoise.serving.guard import Guard
from equipoise.serving.server import SWITCH_S, Server, began, ended, guard_of, shut_down, url_of
from equipoise.serving.settings import Settings
from equipoise.serving.store import Store

log = logging.getLogger("equipoise.serving")
DEADLINE_S = 600.0  # of an answer: as long as OpenAI's clients wait


def serve(
    model: Model | Source,
    settings: Settings,
    text: TextSettings,
    started: Callable[[str, Model], None],
) -> None:
    """Serve a model, or the versions of a registry, until SIGTERM or SIGINT. ``started`` gets the
    URL, and the model that answers if a request names none.

    ValueError or OSError if the settings, the address or the memory do not allow it.
    """
    guard = guard_of(settings)
    torch.set_num_threads(settings.threads)
    asyncio.run(_serve(model, settings, text, guard, started))


async def _serve(
    served: Model | Source,
    settings: Settings,
    text: TextSettings,
    guard: Guard,
    started: Callable[[str, Model], None],
) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    seed = secrets.randbits(62) if settings.seed is None else settings.seed
    deadline_s = DEADLINE_S if settings.deadline_ms is None else settings.deadline_ms / 1000
    store = Store(settings.decisions)
    kept = store if settings.decisions is not None else None
    try:
        if isinstance(served, Model):
            service = Service(
                served, text, rows=settings.batch, seed=seed, deadline_s=deadline_s, store=kept
            )
        else:
            service = VersionedService(
                served, text, rows=settings.batch, seed=seed, deadline_s=deadline_s, store=kept
            )
    except BaseException:
        store.close()
        raise
    model = service.model
    app = App(service, guard, most_body=settings.most_body)
    most = web.fitting(settings.most_connections, 1)
    http = Server(web.config(app, most_connections=most, request_s=settings.request_s))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    assert settings.port is not None
    listening = listen(settings.host, settings.port)
    try:
        service.start()
        serving = loop.create_task(http.serve([listening]))
        await began(http, serving, [listening])
        about = {"model": model.name, "version": model.version, "context": service.context}
        log.info("serving", extra={**about, "at": url_of(listening)})
        sys.setswitchinterval(SWITCH_S)
        started(url_of(listening), model)
        following = loop.create_task(service.follow())
        await ended(stop, serving)
        following.cancel()
        log.info("draining", extra={"open": service.open})
        service.draining = True
        for server in http.servers:
            server.close()
        await shut_down(http, serving, loop.time() + settings.drain_s)
    finally:
        listening.close()
        service.close()
        store.close()
    log.info("ended", extra={"tokens": service.drawn, "records_lost": store.lost})
