"""Histograms of the age of a learner's experience, in versions and in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

import numpy as np

from equipoise.histograms import EDGES, tally
from equipoise.types import Array

# the least number of versions whose time is kept; a version older than the oldest of them counts as
# the oldest
KNOWN = 1 << 16


def distinct(lag: Array) -> tuple[Array, Array]:
    """Return the distinct ones of the lags [n] int64, rising, and how often each occurs."""
    if lag.max() < 64:
        times = np.bincount(lag)
        there = times.nonzero()[0]
        return there, times[there]
    return np.unique(lag, return_counts=True)


class Lags:
    """Counts windows by the age of the version that acted first in them. Nothing is saved."""

    def __init__(self, counts: Mapping[str, Array] | None = None) -> None:
        """``counts``: float64 [bins] for "versions" and "seconds"; None or {} for new arrays."""
        self._counts = counts or {
            name: np.zeros(len(EDGES[name]) + 1) for name in ("versions", "seconds")
        }
        self._versions, self._times = np.empty(2 * KNOWN, np.int64), np.empty(2 * KNOWN)
        # versions that are kept; -1: of those before the first nothing is known
        self._n, self._oldest = 0, -1

    def published(self, version: int) -> None:
        """Note that a version comes out now; the versions rise."""
        if self._n == len(self._times):  # move what is kept to the front
            self._n, self._oldest = KNOWN, 0
            for kept in (self._versions, self._times):
                kept[:KNOWN] = kept[KNOWN:]
        self._versions[self._n], self._times[self._n] = version, perf_counter()
        self._n += 1

    def used(self, version: int, lag: Array, times: Array) -> None:
        """Count an update of ``version`` by windows with these distinct lags [n], each seen
        ``times`` [n] times.

        Windows from before the first version that this learner has seen, as after a resume, have no
        age in seconds.
        """
        tally(self._counts["versions"], EDGES["versions"], lag, times)
        at = np.maximum(
            np.searchsorted(self._versions[: self._n], version - lag, side="right") - 1,
            self._oldest,
        )
        there = at >= 0
        ages = perf_counter() - self._times[at[there]]
        tally(self._counts["seconds"], EDGES["seconds"], ages, times[there])
