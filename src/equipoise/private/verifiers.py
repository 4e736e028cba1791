"""verifiers (0.4): toolsets that run in this process, and not as a server of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Protocol


class Toolset(Protocol):
    """A toolset's private names, which its server uses. Tried: 0.4. If it is gone: start the
    toolset as a server, and call it there.
    """

    _exit_stack: AsyncExitStack
    _pull_state: Callable[[], Awaitable[object]]
    _push_state: Callable[[bytes], Awaitable[None]]


class Trace(Protocol):
    """The part of a trace that toolsets share. Tried: 0.4. If it is gone: as ``Toolset``."""

    state: object


def exit_stack(toolset: Toolset) -> AsyncExitStack:
    """Return the stack of resources that a toolset's server enters before ``setup``. Tried: 0.4.
    If it is gone: as ``Toolset``.
    """
    return toolset._exit_stack


def share_state(toolset: Toolset, trace: Trace) -> None:
    """Have the calls of a toolset read and write a trace's state, as its server does over HTTP.
    Tried: 0.4. If it is gone: as ``Toolset``.
    """

    async def pull() -> object:
        return trace.state

    async def push(before: bytes) -> None: ...

    toolset._pull_state, toolset._push_state = pull, push
