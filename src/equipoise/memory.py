"""Memory that the parts of a run are laid over: a heap's in one process, a shared segment's between processes."""

from __future__ import annotations

from typing import Any, Protocol


class Memory(Protocol):
    """A writable buffer. The runtime's are shared between processes and travel as a handle."""

    buffer: Any
