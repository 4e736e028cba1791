"""verifiers (0.4): toolsets that run in this process, and not as a server of their own."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any


def exit_stack(toolset: Any) -> AsyncExitStack:
    """Return the stack of resources that a toolset's server enters before ``setup``."""
    found: AsyncExitStack = toolset._exit_stack
    return found


def share_state(toolset: Any, trace: Any) -> None:
    """Have the calls of a toolset read and write a trace's state, as its server does over HTTP."""

    async def pull() -> object:
        return trace.state

    async def push(before: bytes) -> None: ...

    toolset._pull_state, toolset._push_state = pull, push
