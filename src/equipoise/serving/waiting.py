"""Waiting in a coroutine for a result that the service gives by a call."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

TURN = 256  # most callers that one turn of the loop answers


class Turns:
    """Results that came at once, given to the waiting callers some at a time: one transaction may
    have thousands.
    """

    def __init__(self) -> None:
        self._due: deque[tuple[asyncio.Future[bool], bool]] = deque()
        self._called = False

    def add(self, waiting: asyncio.Future[bool], result: bool) -> None:
        """Call it in the loop's thread."""
        self._due.append((waiting, result))
        if not self._called:
            self._called = True
            self._some()

    def _some(self) -> None:
        for _ in range(min(TURN, len(self._due))):
            waiting, result = self._due.popleft()
            if not waiting.done():  # done: the caller has left
                waiting.set_result(result)
        asyncio.get_running_loop().call_soon(self._again)

    def _again(self) -> None:
        self._called = bool(self._due)
        if self._called:
            self._some()


class Answer:
    """A reply that a coroutine may await; a reply that came at once costs no turn of the loop."""

    __slots__ = ("_given", "_waiting")

    def __init__(self) -> None:
        self._given: object = None
        self._waiting: asyncio.Future[None] | None = None

    def __call__(self, given: object) -> None:
        self._given = given
        if self._waiting is not None and not self._waiting.done():  # done: the caller has left
            self._waiting.set_result(None)

    async def get(self) -> Any:
        if self._given is None:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._given
