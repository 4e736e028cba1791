"""Waiting in a coroutine for what the service tells by a call."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from equipoise.serving.messages import Outcome, Refused
from equipoise.serving.service import Service

STORED_S = 30.0  # an outcome that is not in the file by then is refused


class Answer:
    """A reply that a coroutine may await; one that came at once costs no turn of the loop."""

    __slots__ = ("_given", "_waiting")

    def __init__(self) -> None:
        self._given: Any = None
        self._waiting: asyncio.Future[None] | None = None

    def __call__(self, given: Any) -> None:
        self._given = given
        if self._waiting is not None and not self._waiting.done():  # done: the caller has left
            self._waiting.set_result(None)

    async def get(self) -> Any:
        if self._given is None:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._given


async def stored(service: Service, outcomes: list[Outcome]) -> None:
    """Wait until outcomes are in the file; Refused (507) where they cannot be."""
    loop = asyncio.get_running_loop()
    written: asyncio.Future[bool] = loop.create_future()

    def told(fine: bool) -> None:  # in the writer's thread
        with contextlib.suppress(RuntimeError):  # the loop is closed, which it may be at any moment; the writer goes on
            loop.call_soon_threadsafe(lambda: None if written.done() else written.set_result(fine))

    service.outcome(outcomes, told)
    try:
        fine = await asyncio.wait_for(asyncio.shield(written), STORED_S)
    except TimeoutError:
        fine = False if service.store.drop(told) else await written
    if not fine:
        raise Refused(507, f"outcome: expected room for it, got none: {service.store.alarm or 'the disk is slow'}")
