"""Where gloo finds each learner of a run, in memory that all of them map."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch import distributed

from equipoise.learners.meeting import ADDRESS

LOOK_S = 0.001  # how often a learner looks for the addresses of the others


class Addresses(distributed.Store):  # type: ignore[misc,name-defined]
    """The part of torch's store that gloo asks: what a learner says is ready for the others, by their numbers."""

    def __init__(self, words: Any, pulse: Callable[[], object]) -> None:
        super().__init__()
        self._words, self._pulse = words, pulse

    def set(self, key: str, value: bytes) -> None:
        rank = _rank(key)
        if len(value) > ADDRESS:
            raise ValueError(f"expected an address of at most {ADDRESS} bytes, got {len(value)}")
        self._words["address"][rank, : len(value)] = bytearray(value)
        self._words["size"][rank] = len(value)

    def get(self, key: str) -> bytes:
        self.wait([key])
        rank = _rank(key)
        return bytes(self._words["address"][rank, : self._words["size"][rank]])

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            while not self._words["size"][_rank(key)]:
                self._pulse()
                time.sleep(LOOK_S)


def _rank(key: str) -> int:
    """The number of the learner that says this; gloo's keys end with it."""
    return int(key.rpartition("/")[2])
