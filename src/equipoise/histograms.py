"""Histograms with fixed bins, a few for each factor of ten: counts in an array that two processes
may share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# Upper ends of the bins, which belong to them; one more bin has what is beyond the last.
# 0 1 2 3 4 6 8 12 16 24 ... 25 million
VERSIONS = (0, 1, 2, 3, *(part << k for k in range(1, 24) for part in (2, 3)))
# 0.1 ms, 0.16, 0.25, 0.4, 0.63, 1 ms ... 11 days
SECONDS = tuple(float(f"{10 ** (k / 5):.2g}") for k in range(-20, 31))

EDGES: Mapping[str, Sequence[float]] = {"versions": VERSIONS, "seconds": SECONDS, "loop": SECONDS}


def tally(counts: Any, edges: Sequence[float], values: Any, times: Any = None) -> None:
    """Count the values [n] into ``counts`` [len(edges) + 1] float64, each ``times`` [n] times, or
    once.
    """
    counts += np.bincount(np.searchsorted(edges, values), times, len(edges) + 1)


def filled(counts: Sequence[float], edges: Sequence[float]) -> dict[str, int]:
    """The bins that are not empty, by their upper ends."""
    ends = [*(f"{edge:g}" for edge in edges), "inf"]
    return {end: int(n) for end, n in zip(ends, counts, strict=True) if n}
