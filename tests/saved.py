"""A worker's part of a checkpoint in memory."""

from __future__ import annotations

from typing import Any


class Kept:
    """``StateWriter`` and ``StateReader`` of one worker;
    ``write`` gives the names that were put.
    """

    def __init__(self, state: Any = None, *, cut: int = 1) -> None:
        self.cut = cut
        self.states: dict[str, Any] = {} if state is None else {"": state}
        self.rows: dict[str, bytes] = {}

    def put(self, state: Any, name: str = "") -> None:
        self.states[name] = state

    def put_weights(self, params: Any) -> None:
        self.states["weights"] = params

    def write(self) -> dict[str, Any]:
        return {name: {} for name in self.states}

    def state(self, name: str = "") -> Any:
        return self.states[name]

    def segments(self) -> dict[str, Any]:
        return {name: {} for name in self.rows}

    def segment(self, name: str) -> bytes:
        return self.rows[name]
