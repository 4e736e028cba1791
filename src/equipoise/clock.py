"""The clock of a worker: how long each part of its ticks takes, in numbers that the driver reads.
Nothing here loads torch.

A worker marks a part with one line, and every moment between two marks belongs to one part:

    clock.begin()
    rows = env.recv()
    clock.lap("env")
    agent.observe(rows)
    clock.lap("write")

A lap costs 0.2 us, on the fastest row that two processes can share: numpy would take half as long
again, and a ``with`` block five times as long (``benchmarks/metering.py --rows``). In a worker it
costs several times that, since what it touches has left the caches by the next tick. So of ticks
that follow each other closely one in ``EVERY`` is measured, and counts for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

# shares no factor with the unrolls and batches that people choose, so that nothing regular is
# always missed
EVERY = 17
# the seconds that a worker of sampled ticks adds whenever they come (``Clock.add``): no sample
ADDED = ("reset", "fetch")
# ticks that begin within so much of each other, in the mean, are measured by samples
CLOSE_S = 0.001


class Clock:
    """Adds up the seconds of each part of one worker's work, and how often each came.
    One writer.
    """

    __slots__ = (
        "_at",
        "_begun",
        "_close_s",
        "_counts",
        "_seconds",
        "_skip",
        "_stands_for",
        "parts",
    )

    def __init__(
        self,
        parts: Sequence[str],
        seconds: Any = None,
        counts: Any = None,
        *,
        samples: bool = False,
    ) -> None:
        """``seconds``, ``counts``: arrays [parts] float64, which others may read; None: memory of
        its own.

        ``samples``: all parts that are laps come in most ticks, so a sample of the ticks will do.
        """
        self._close_s = CLOSE_S if samples else 0.0
        own = np.zeros((2, len(parts)))
        self.parts = {name: number for number, name in enumerate(parts)}
        self._seconds: memoryview[float] = memoryview(own[0] if seconds is None else seconds)
        self._counts: memoryview[float] = memoryview(own[1] if counts is None else counts)
        # the last mark, and the last beginning of a tick that is measured
        self._at = self._begun = perf_counter()
        # ticks that this one stands for; that are still to be skipped, this one first
        self._stands_for, self._skip = 1.0, 0

    def begin(self, then: str = "") -> None:
        """A tick begins: set a mark, and the time before it belongs to no part.

        ``then``: the part that comes next for certain, for profilers (``tracing.NvtxClock``).
        """
        if self._skip > 1:
            self._skip -= 1
            return
        now = perf_counter()
        close = now - self._begun < self._close_s * self._stands_for
        self._stands_for, self._skip = (float(EVERY), EVERY) if close else (1.0, 0)
        self._at = self._begun = now

    def lap(self, part: str, then: str = "") -> None:
        """Count the time since the last mark as this part, and set a mark. ``then``: as for
        ``begin``.
        """
        if 0 < self._skip < EVERY:
            return
        now, number = perf_counter(), self.parts[part]
        self._seconds[number] += (now - self._at) * self._stands_for
        self._counts[number] += self._stands_for
        self._at = now

    def add(self, part: str, seconds: float) -> None:
        """Count seconds that have just passed as this part, and not as the part whose lap is under
        way.
        """
        number = self.parts[part]
        self._seconds[number] += seconds
        self._counts[number] += 1.0
        self._at += seconds
