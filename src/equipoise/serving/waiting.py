"""Waiting in a coroutine for what the service tells by a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from equipoise.serving.messages import Outcome, Refused
from equipoise.serving.service import Service

STORED_S = 30.0  # an outcome that is not in the file by then is refused


async def answered(ask: Callable[[Callable[[Any], None]], None]) -> Any:
    """What ``ask`` gives to the function that it is called with."""
    answer = asyncio.get_running_loop().create_future()
    ask(lambda given: None if answer.done() else answer.set_result(given))  # done: the caller has left
    return await answer


async def stored(service: Service, outcomes: list[Outcome]) -> None:
    """Wait until outcomes are in the file; Refused (507) where they cannot be."""
    loop = asyncio.get_running_loop()
    written: asyncio.Future[bool] = loop.create_future()

    def told(fine: bool) -> None:  # in the writer's thread
        loop.call_soon_threadsafe(lambda: None if written.done() else written.set_result(fine))

    service.outcome(outcomes, told)
    try:
        fine = await asyncio.wait_for(written, STORED_S)
    except TimeoutError:
        fine = False
    if not fine:
        raise Refused(507, f"outcome: expected room for it, got none: {service.store.alarm or 'the disk is slow'}")
