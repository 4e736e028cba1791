"""Episode statistics, aggregated where the env is, as arrays: no dict per episode, flat in memory
over any length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from equipoise import schema, tree
from equipoise.envs.failures.causes import Causes
from equipoise.memory import Memory
from equipoise.tree import ArraySpec
from equipoise.types import Array, TimeStep, Tree

RECENT = 100  # episodes
# episodes of an actor at least, the same number of each stream, by which later ones are measured
FIRST = 20
# statistics of an info number: its value as the episode ended, its mean over the steps
STATISTICS = ("last", "mean")


class InfoNumbers:
    """The numbers of ``TimeStep.info`` [B, M] in the running episodes of B streams."""

    def __init__(self, streams: int, metrics: int) -> None:
        self.last, self.sum, self.rows = (np.zeros((streams, metrics)) for _ in range(3))
        self.last.fill(np.nan)
        self._there = np.zeros((streams, metrics), bool)

    def add(self, ts: TimeStep) -> None:
        """Add the numbers of this step; a seam's numbers belong to no episode."""
        assert ts.info is not None
        info, there = ts.info, self._there
        np.isnan(info, out=there)
        np.logical_not(there, out=there)
        np.logical_and(there, ts.valid[:, None], out=there)
        np.copyto(self.last, info, where=there)
        np.add(self.sum, info, out=self.sum, where=there)
        np.add(self.rows, 1.0, out=self.rows, where=there)

    def of(self, streams: Array) -> Array:
        """Return [n, M * 2]: of each name its ``STATISTICS`` in these streams' episodes so far, nan
        if it was not there.
        """
        with np.errstate(invalid="ignore"):  # 0 / 0: a name that the episode did not have
            mean = self.sum[streams] / self.rows[streams]
        return np.stack([self.last[streams], mean], axis=2).reshape(len(mean), -1)

    def forget(self, streams: Array) -> None:
        """Forget the running episodes of these streams."""
        self.last[streams], self.sum[streams], self.rows[streams] = np.nan, 0.0, 0.0


class Episodes:
    """One actor's episodes: totals, and the last ``RECENT`` of them. One writer; readers may sit in
    other processes.
    """

    specs: ClassVar[dict[str, Tree]] = {
        "count": ArraySpec((1,), "int64"),
        "returns": ArraySpec((RECENT,), "float64"),
        "lengths": ArraySpec((RECENT,), "int64"),
        # the tick at which the episode ended: orders episodes of several actors
        "ended": ArraySpec((RECENT,), "int64"),
        "ticks": ArraySpec((1,), "int64"),
        # the first row number that no unroll of this actor has used
        "next_row": ArraySpec((1,), "int64"),
        "acted": ArraySpec((1,), "int64"),  # the version that the open unroll is acted by
        "first": ArraySpec((3,), "float64"),  # of every stream: number, sum and squares of returns
        # written by the env: equipoise.envs.failures.capsule.COUNTED
        "failures": ArraySpec((3,), "int64"),
        "causes": Causes.specs,  # written by the env
    }

    def __init__(self, streams: int, memory: Memory, metrics: Sequence[str] = ()) -> None:
        """``metrics``: the names of the columns of ``TimeStep.info``."""
        self.memory, self._streams, self.metrics = memory, streams, tuple(metrics)
        self._views = tree.views(self.layout(metrics), memory.buffer)
        self._running: dict[str, Array] = {
            "return": np.zeros(streams, np.float64),
            "length": np.zeros(streams, np.int64),
            "ended": np.zeros(streams, np.int64),
        }
        self._return, self._length, self._ended = (
            self._running[name] for name in ("return", "length", "ended")
        )
        self._firsts = -(-FIRST // streams)  # of each stream
        self._done = np.zeros(streams, bool)
        self._answers = 0  # of partial streams, that are no whole row yet
        if metrics:
            self._numbers = InfoNumbers(streams, len(metrics))
            numbers = self._numbers
            self._running |= {
                "info_last": numbers.last,
                "info_sum": numbers.sum,
                "info_rows": numbers.rows,
            }

    @classmethod
    def layout(cls, metrics: Sequence[str] = ()) -> dict[str, Tree]:
        """The shared memory of an actor's episodes, as specs."""
        columns = len(metrics) * len(STATISTICS)
        return cls.specs | ({"info": ArraySpec((RECENT, columns), "float64")} if columns else {})

    def __getstate__(self) -> tuple[int, Memory, tuple[str, ...]]:
        return self._streams, self.memory, self.metrics

    def __setstate__(self, state: tuple[int, Memory, tuple[str, ...]]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def observe(self, ts: TimeStep) -> None:
        """Add one row of every stream; an episode that was aborted leaves nothing behind."""
        v = self._views
        v["ticks"][0] += 1 if ts.answered is None else self._rows_of(ts.answered)
        self._return += ts.reward
        self._length += ts.valid
        # a seam, if both are 0 already, or an aborted episode
        np.greater(ts.first, ts.valid, out=self._done)
        if self._done.any():
            self._forget(self._done)
        if self.metrics:
            self._numbers.add(ts)
        np.logical_or(ts.terminated, ts.truncated, out=self._done)
        if not self._done.any():
            return
        ended = np.flatnonzero(self._done)
        count = int(v["count"][0])
        at = (count + np.arange(len(ended))) % RECENT
        keep = slice(-RECENT, None)  # the last RECENT win if more end at once
        for name, values in (("returns", self._return[ended]), ("lengths", self._length[ended])):
            v[name][at[keep]] = values[keep]
        if self.metrics:
            v["info"][at[keep]] = self._numbers.of(ended)[keep]
        v["ended"][at[keep]] = v["ticks"][0]
        v["count"][0] = count + len(ended)
        if v["first"][0] < self._firsts * self._streams:
            self._note_first(ended)
        self._forget(ended)

    def _rows_of(self, answered: Array) -> int:
        """Whole rows of all streams, as soon as enough streams have answered."""
        rows, self._answers = divmod(self._answers + int(np.count_nonzero(answered)), self._streams)
        return rows

    def whole(self, returns: Array, lengths: Array, *, there: bool = True) -> None:
        """Add a whole episode of every stream, as one tick: returns [B] float64, nan for one
        without, and lengths [B].

        Not ``there``: it was lost.
        """
        v = self._views
        v["ticks"][0] += 1
        if there:
            count, keep = int(v["count"][0]), slice(-RECENT, None)
            at = ((count + np.arange(self._streams)) % RECENT)[keep]
            v["returns"][at], v["lengths"][at], v["ended"][at] = (
                returns[keep],
                lengths[keep],
                v["ticks"][0],
            )
            v["count"][0] = count + self._streams
            if v["first"][0] < self._firsts * self._streams:
                self._return[:] = returns
                self._note_first(np.flatnonzero(~np.isnan(returns)))
                self._return[:] = 0.0

    def _note_first(self, ended: Array) -> None:
        """Add the returns of the ``ended`` streams whose episode is one of their first."""
        new = ended[self._ended[ended] < self._firsts]
        self._ended[new] += 1
        returns = self._return[new]
        self._views["first"] += (len(new), returns.sum(), np.square(returns).sum())

    def _forget(self, streams: Array) -> None:
        self._return[streams] = 0.0
        self._length[streams] = 0
        if self.metrics:
            self._numbers.forget(streams)

    def counted(self) -> tuple[list[Array], list[Array]]:
        """The arrays that the acting side writes, and the arrays that the env writes."""
        env = ("failures", "causes")
        acting = {name: part for name, part in self._views.items() if name not in env}
        return tree.leaves(acting), tree.leaves({name: self._views[name] for name in env})

    def abandon(self) -> None:
        """Note that the running episodes will not be finished."""
        self._forget(slice(None))

    def state(self) -> Tree:
        return {"shared": tree.map(np.array, self._views), "running": dict(self._running)}

    def schema(self) -> schema.Schema:
        """The schema of a saved state."""
        counts = {
            name: schema.Array((1,), "int64", 0, schema.MOST)
            for name in ("ticks", "count", "next_row", "acted")
        }
        shared = (
            schema.like(self._views)
            | counts
            | {"first": schema.Array((3,), "float64", finite=True)}
        )
        return {"shared": shared, "running": schema.like(self._running)}

    def load(self, state: Tree) -> None:
        tree.copy(self._views, state["shared"])
        tree.copy(self._running, state["running"])

    @property
    def next_row(self) -> int:
        return int(self._views["next_row"][0])

    @next_row.setter
    def next_row(self, row: int) -> None:
        self._views["next_row"][0] = row

    def begins(self, version: int, next_row: int) -> None:
        """Note that an unroll begins: the version that acts in it, and the row after its last."""
        self._views["acted"][0], self.next_row = version, next_row

    @property
    def acting(self) -> tuple[int, int]:
        """The version of the open unroll and the row after its last."""
        return int(self._views["acted"][0]), self.next_row

    @property
    def failures(self) -> Array:
        """The failure counts [3] int64 of this actor, written by its env."""
        return self._views["failures"]

    @property
    def causes(self) -> Causes:
        """The causes of this actor's aborted episodes; its env writes them."""
        return Causes(self._views["causes"])

    @property
    def ticks(self) -> int:
        """The number of rows of each stream so far."""
        return int(self._views["ticks"][0])

    @property
    def count(self) -> int:
        return int(self._views["count"][0])


def recent(actors: Sequence[Episodes], n: int = RECENT) -> tuple[int, float | None, float | None]:
    """(episodes so far, mean return, mean length) of the last ``n`` episodes over all actors; None
    before the first.
    """
    count = sum(a.count for a in actors)
    if count == 0:
        return 0, None, None
    returns, lengths = _newest(actors, ("returns", "lengths"), n).T
    known = returns[~np.isnan(returns)]
    return count, float(known.mean()) if len(known) else None, float(lengths.mean())


def first_returns(actors: Sequence[Episodes]) -> tuple[int, float, float] | None:
    """(episodes, mean, deviation) of the returns of the first episodes of every stream; None until
    all of them have ended.

    As many count of each stream, so that short episodes do not count more.
    """
    first = [a._views["first"] for a in actors]
    if not first or any(
        one[0] < a._firsts * a._streams for one, a in zip(first, actors, strict=True)
    ):
        return None
    count, total, squares = np.sum(first, axis=0)
    mean = total / count
    return int(count), float(mean), float(np.sqrt(max(squares / count - mean * mean, 0.0)))


def recent_info(actors: Sequence[Episodes]) -> dict[str, float | None]:
    """{"name/last", "name/mean": mean over the episodes, of the last ``RECENT`` episodes with the
    name; None before the first}.
    """
    metrics = actors[0].metrics if actors else ()
    some = metrics and any(a.count for a in actors)
    return mean_info(metrics, _newest(actors, ("info",), RECENT) if some else ())


def mean_info(metrics: Sequence[str], rows: Array) -> dict[str, float | None]:
    """The means of ``InfoNumbers.of`` over episodes [n, M * 2], by name; None for a name that is in
    no episode.
    """
    names = [f"{name}/{statistic}" for name in metrics for statistic in STATISTICS]
    if not len(rows):
        return dict.fromkeys(names)
    there = ~np.isnan(rows)
    counts, sums = there.sum(axis=0), np.where(there, rows, 0.0).sum(axis=0)
    return {
        name: float(total / count) if count else None
        for name, total, count in zip(names, sums, counts, strict=True)
    }


def _newest(actors: Sequence[Episodes], keys: Sequence[str], n: int) -> Array:
    """[<= n, columns of ``keys``] float64 of the episodes that ended last, over all actors."""
    ended, rows = [], []
    for a in actors:
        size = min(a.count, RECENT)
        order = (a.count - size + np.arange(size)) % RECENT
        ended.append(a._views["ended"][order])
        rows.append(np.column_stack([a._views[k][order].astype(np.float64) for k in keys]))
    last = np.argsort(np.concatenate(ended), kind="stable")[-n:]
    return np.concatenate(rows)[last]
