"""The moments of the learner's updates, in a file that both sides map: it outlives the learner and
costs no messages.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path

import numpy as np

MOST = 1 << 18  # updates; the file is sparse


class Beats:
    """An array that processes share: the count of updates, then their monotonic times."""

    def __init__(self, path: Path) -> None:
        self._values = np.memmap(path, np.float64, mode="r+", shape=(MOST + 1,))

    @classmethod
    def create(cls, path: Path) -> Beats:
        with path.open("wb") as file:
            file.truncate((MOST + 1) * 8)
        return cls(path)

    @property
    def count(self) -> int:
        return int(self._values[0])

    def beat(self) -> None:
        n = self.count
        self._values[1 + n % MOST] = time.monotonic()
        self._values[0] = n + 1

    def pause_s(self, since: float) -> float:
        """The longest time between two updates, the second of which came after ``since``."""
        if self.count > MOST:
            raise ValueError(
                f"expected at most {MOST} updates, got {self.count}: their moments are overwritten"
            )
        moments = np.array(self._values[1 : self.count + 1])
        pauses = np.diff(moments)[moments[1:] > since]
        return float(pauses.max()) if len(pauses) else float("inf")


@functools.cache
def opened(path: str) -> Beats:
    """Open the file once in this process."""
    return Beats(Path(path))
