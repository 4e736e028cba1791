"""Episode statistics, aggregated where the env is, as arrays: no dict per episode, flat in memory over any length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from equipoise import tree
from equipoise.tree import ArraySpec
from equipoise.types import TimeStep, Tree

RECENT = 100  # episodes


class Memory(Protocol):
    buffer: Any


class Episodes:
    """One actor's episodes: totals, and the last ``RECENT`` of them. One writer; readers may sit in other processes."""

    specs = {
        "count": ArraySpec((1,), "int64"),
        "returns": ArraySpec((RECENT,), "float64"),
        "lengths": ArraySpec((RECENT,), "int64"),
        "ended": ArraySpec((RECENT,), "int64"),  # the tick at which the episode ended: orders episodes of several actors
        "ticks": ArraySpec((1,), "int64"),
        "next_row": ArraySpec((1,), "int64"),  # the first row number that no unroll of this actor has taken
        "failures": ArraySpec((3,), "int64"),  # written by the env: equipoise.envs.capsule.COUNTED
    }

    def __init__(self, streams: int, memory: Memory) -> None:
        self._memory, self._streams = memory, streams
        self._views = tree.views(self.specs, memory.buffer)
        self._return = np.zeros(streams, np.float64)
        self._length = np.zeros(streams, np.int64)
        self._done = np.zeros(streams, bool)

    def __getstate__(self) -> tuple[int, Memory]:
        return self._streams, self._memory

    def __setstate__(self, state: tuple[int, Memory]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def observe(self, ts: TimeStep) -> None:
        """Add one row of every stream; an episode that was aborted leaves nothing behind."""
        v = self._views
        v["ticks"][0] += 1
        self._return += ts.reward
        self._length += ts.valid
        np.greater(ts.first, ts.valid, out=self._done)  # a seam, where both are 0 already, or an aborted episode
        if self._done.any():
            self._return[self._done] = 0.0
            self._length[self._done] = 0
        np.logical_or(ts.terminated, ts.truncated, out=self._done)
        if not self._done.any():
            return
        ended = np.flatnonzero(self._done)
        count = int(v["count"][0])
        at = (count + np.arange(len(ended))) % RECENT
        keep = slice(-RECENT, None)  # of more than RECENT at once the last win
        for name, values in (("returns", self._return[ended]), ("lengths", self._length[ended])):
            v[name][at[keep]] = values[keep]
        v["ended"][at[keep]] = v["ticks"][0]
        v["count"][0] = count + len(ended)
        self._return[ended] = 0.0
        self._length[ended] = 0

    def abandon(self) -> None:
        """The running episodes will not be finished."""
        self._return[:] = 0.0
        self._length[:] = 0

    def state(self) -> Tree:
        running = {"return": self._return, "length": self._length}
        return {"shared": tree.map(np.array, self._views), "running": running}

    def load(self, state: Tree) -> None:
        tree.copy(self._views, state["shared"])
        tree.copy({"return": self._return, "length": self._length}, state["running"])

    @property
    def next_row(self) -> int:
        return int(self._views["next_row"][0])

    @next_row.setter
    def next_row(self, row: int) -> None:
        self._views["next_row"][0] = row

    @property
    def failures(self) -> Any:
        """[3] int64, this actor's; its env writes them."""
        return self._views["failures"]

    @property
    def count(self) -> int:
        return int(self._views["count"][0])


def recent(actors: Sequence[Episodes], n: int = RECENT) -> tuple[int, float | None, float | None]:
    """(episodes so far, mean return, mean length) of the last ``n`` episodes over all actors; None before the first."""
    count = sum(a.count for a in actors)
    if count == 0:
        return 0, None, None
    rows = []
    for a in actors:
        size = min(a.count, RECENT)
        order = (a.count - size + np.arange(size)) % RECENT
        rows.append(np.stack([a._views[k][order].astype(np.float64) for k in ("ended", "returns", "lengths")]))
    ended, returns, lengths = np.concatenate(rows, axis=1)
    last = np.argsort(ended, kind="stable")[-n:]
    return count, float(returns[last].mean()), float(lengths[last].mean())
