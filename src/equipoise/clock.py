"""The clock of a worker: how long each part of its ticks takes, in numbers that the driver reads. Nothing here loads torch.

A worker marks a part with one line, and every moment between two marks belongs to one part:

    clock.begin()
    rows = env.recv()
    clock.lap("env")
    agent.observe(rows)
    clock.lap("write")

A lap costs 0.2 us, on the fastest row that two processes can share: numpy would take half as long again, and a ``with`` block
five times as long (``benchmarks/metering.py --rows``).
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np


class Clock:
    """Adds up the seconds of each part of one worker's work, and how often each came. One writer."""

    __slots__ = ("_at", "_counts", "_seconds", "parts")

    def __init__(self, parts: Sequence[str], seconds: Any = None, counts: Any = None) -> None:
        """``seconds``, ``counts``: arrays [parts] float64, which others may read; None: memory of its own."""
        own = np.zeros((2, len(parts)))
        self.parts = {name: number for number, name in enumerate(parts)}
        self._seconds: memoryview[float] = memoryview(own[0] if seconds is None else seconds)
        self._counts: memoryview[float] = memoryview(own[1] if counts is None else counts)
        self._at = perf_counter()  # the last mark

    def begin(self) -> None:
        """Set a mark: the time before it belongs to no part."""
        self._at = perf_counter()

    def lap(self, part: str) -> None:
        """Count the time since the last mark as this part, and set a mark."""
        now, number = perf_counter(), self.parts[part]
        self._seconds[number] += now - self._at
        self._counts[number] += 1.0
        self._at = now

    def add(self, part: str, seconds: float) -> None:
        """Count seconds that have just passed as this part, and not as the one whose lap is under way."""
        number = self.parts[part]
        self._seconds[number] += seconds
        self._counts[number] += 1.0
        self._at += seconds
