"""The address of each learner of a run for gloo, in memory that all of them map."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from torch import distributed

from equipoise.publishing import publish
from equipoise.types import Tree


class Addresses(distributed.Store):  # type: ignore[misc,name-defined]
    """The part of torch's store that gloo uses: the address of each learner, by its number.

    An address is valid in one life of the meeting. After a loss all learners write new ones.
    """

    def __init__(self, words: Tree, wait_for: Callable[[Callable[[], bool]], None]) -> None:
        super().__init__()
        self._words, self._wait_for = words, wait_for

    def set(self, key: str, value: bytes) -> None:
        rank, words = _rank(key), self._words
        if len(value) > (most := words["address"].shape[1]):
            raise ValueError(f"expected an address of at most {most} bytes, got {len(value)}")
        words["address"][rank, : len(value)] = bytearray(value)
        words["bytes"][rank] = len(value)
        publish(words["met"], rank, 1 + words["seen"][rank])

    def get(self, key: str) -> bytes:
        self.wait([key])
        rank = _rank(key)
        return bytes(self._words["address"][rank, : self._words["bytes"][rank]])

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        words = self._words
        for rank in map(_rank, keys):
            self._wait_for(lambda rank=rank: bool(words["met"][rank] == 1 + words["life"][0]))  # type: ignore[misc]


def _rank(key: str) -> int:
    """The learner's number, with which gloo's keys end."""
    return int(key.rpartition("/")[2])
