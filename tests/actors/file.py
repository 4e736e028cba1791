"""A worker's part of a checkpoint, in memory, through its bytes."""

from __future__ import annotations

from typing import Any

from equipoise.record import statefile


class File:
    def __init__(self) -> None:
        self.data = b""

    def put(self, state: Any, name: str = "") -> None:
        self.data = statefile.dump(state)

    def state(self, name: str = "") -> Any:
        return statefile.parse(self.data)
