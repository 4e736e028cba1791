"""Replay: every row is kept once, and learned from as often as its selector likes.

For the actors it is a queue, the inbox; for the learner a store of rows, fed in rounds (``rounds.py`` has the law). Here both
are the learner's own; ``sharded.py`` has several stores, each in a worker of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise import tree
from equipoise.experience import hindsight
from equipoise.experience.codec import chosen
from equipoise.experience.hindsight import Goals
from equipoise.experience.layout import RowSpec
from equipoise.experience.offline import Shelf, beside
from equipoise.experience.ring import Layout, smallest
from equipoise.experience.rounds import Rounds
from equipoise.experience.selectors import Fifo
from equipoise.experience.store import Store
from equipoise.types import Array, Batch, Experience, Stack, Trajectory, Tree
from equipoise.types import Replay as Settings

PER_PLACE = {"uniform": 1, "fifo": 24, "prioritized": 17}  # bytes of a selector, about


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """The sizes of a replay."""

    settings: Settings
    row: RowSpec
    unroll: int
    window: int
    block: int  # streams of an actor
    actors: int
    span: int  # an actor's streams are numbered from a multiple of it on
    rounds: int  # of the run, for what is annealed
    stacks: Mapping[str, Stack] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """ValueError where what was asked for is too little."""
        _ = self.slots, self.codecs

    @property
    def codecs(self) -> Mapping[str, str]:
        """Of the leaves that are encoded, by path; ValueError as ``codec.chosen`` says."""
        return chosen(self.settings.codec, self.layout.large, self.layout.small)

    @property
    def layout(self) -> Layout:
        return Layout.of(self.row, self.stacks)

    @property
    def streams(self) -> int:
        return self.actors * self.block

    @property
    def rows(self) -> int:
        """Of a round."""
        return self.unroll * self.streams

    def of_shard(self, shard: int) -> int:
        """The actors whose rows it keeps: every ``shards``-th."""
        return len(range(shard, self.actors, self.settings.shards))

    @property
    def begins(self) -> int:
        """The round that the first updates follow, from 1."""
        return first_round(self.settings.starts_at, rows=self.rows, unroll=self.unroll, window=self.window)

    def nbytes(self, slots: int) -> int:
        place = PER_PLACE[self.settings.selector] + (hindsight.PER_PLACE if self.settings.relabel else 0)
        rows = self.layout.nbytes(slots=slots, streams=self.streams, unroll=self.unroll, encoded=self.codecs)
        return rows + place * slots * self.streams

    @property
    def slots(self) -> int:
        """Of a stream; ValueError where what was asked for is too little."""
        settings, one = self.settings, self.unroll
        # What is held before the first update has to fit, and one more block, which is given up while it is written over.
        least = max(smallest(self.layout, unroll=one, window=self.window), (self.begins + 2) * one)
        if settings.memory:
            slots = int(settings.memory / self.nbytes(one)) * one
            if slots < least:
                raise ValueError(
                    f"replay.memory: expected at least {self.nbytes(least):,} bytes ({least} rows of {self.streams} streams, "
                    f"{self.nbytes(one) // (one * self.streams):,} bytes a row), got {settings.memory:,}"
                )
            return slots
        slots = (1 - -settings.capacity // self.rows) * one  # and the block that is given up
        if slots < least:
            raise ValueError(
                f"replay.capacity: expected at least {(least - one) * self.streams:,} rows, room for starts_at="
                f"{settings.starts_at:,}, windows of {self.window} and a round of {self.rows:,}, got {settings.capacity:,}"
            )
        return slots


def first_round(starts_at: int, *, rows: int, unroll: int, window: int) -> int:
    """The round, from 1, that the first updates follow: with ``starts_at`` rows, and with ``window`` of each stream."""
    return max(-(-starts_at // rows), -(-window // unroll))


class Replay(Rounds, Store):
    """``Experience`` of one learner, whose process keeps the rows; actors have the inbox itself."""

    def __init__(
        self, plan: ReplayPlan, inbox: Experience, *, seed: int, prefetch: bool = False, pinned: bool = False,
        folder: Path | None = None, goals: Goals | None = None, shelf: Shelf | None = None,
        priority: Callable[[Trajectory], Array | None] | None = None, wrote: Callable[[float], object] = lambda seconds: None,
    ) -> None:  # fmt: skip
        """``shelf``: a data set's rows, which ``dataset_share`` of every batch is of.

        ``prefetch``: the next batch is drawn and gathered by a thread while this one is learned from, where both are of one
        round: it knows nothing of this one's new priorities. ``wrote`` is told the seconds that each round took to be written.
        The others are those of ``Store``.
        """
        Rounds.__init__(self, plan, inbox, ahead=prefetch)
        Store.__init__(self, plan, seed=seed, pinned=pinned, folder=folder, goals=goals, priority=priority)
        self.shelf, self._wrote = shelf, wrote
        self._thread = ThreadPoolExecutor(1, "replay") if prefetch else None
        self._next: Future[Batch] | Batch | None = None
        self._buffer = 0

    def _bring(self) -> Array | None:
        """A round out of the inbox, if one is complete, and none of what it overwrites is still to be saved."""
        if self.journal is not None and not self.journal.may_insert(self._plan.actors):  # any of them may be of one actor
            return None
        batch = self._inbox.sample(self._plan.streams)
        if batch is None:
            return None
        began = time.perf_counter()
        self.insert(Trajectory(**{name: tree.numpy_views(getattr(batch.data, name)) for name in Trajectory.__slots__}))
        self._wrote(time.perf_counter() - began)
        return batch.keys

    def _items(self) -> int:
        return len(self.selector)

    def _ask(self, n: int) -> None:
        self._next = self._draw(n) if self._thread is None else self._thread.submit(self._draw, n)

    def _answer(self) -> Batch | None:
        prepared, self._next = self._next, None
        return prepared.result() if isinstance(prepared, Future) else prepared

    def _draw(self, n: int) -> Batch:
        self._buffer ^= 1  # the other's batch is being learned from
        if self.shelf is None:
            return self._live(n)
        live, done = self._live(n - (recorded := self._recorded(n))), self._done
        return beside(live, self.shelf.draw(recorded, self._rng, done=done, buffer=self._buffer))

    def _recorded(self, n: int) -> int:
        """Items of a batch of ``n`` that are the data set's: the last ones."""
        return 0 if self.shelf is None else self._plan.settings.recorded(n)

    def _live(self, n: int) -> Batch:
        if isinstance(self.selector, Fifo):
            places, weight = self._in_turn(n)
        else:
            places, probability = self.draw(n)
            weight = self._weight(probability)
        data = self.windows(places, self._buffer)
        keys = np.empty((n, 2), np.int64)
        keys[:, 0], keys[:, 1] = places, data.context["start"].numpy()
        return Batch(data=data, keys=keys, weight=weight, targets={})

    def _in_turn(self, n: int) -> tuple[Any, torch.Tensor]:
        """Every item once: seams are none, so a round has fewer than rows; what is missing has the weight 0."""
        left = min(n, len(self.selector))
        places = np.zeros(n, np.int64)
        places[:left] = self.selector.sample(left, self._rng)[0]
        weight = torch.zeros(n)
        weight[:left] = 1.0
        return places, weight

    def learned(self, keys: Array, priority: Array | None) -> None:
        """New priorities [n] for items; of rows that are still there."""
        if priority is None:
            return
        if isinstance(self._next, Future):
            self._next.result()  # it draws from what changes now
        if isinstance(priority, torch.Tensor):
            priority = priority.cpu()
        if self.shelf is not None:
            live = len(keys) - self._recorded(len(keys))
            self.shelf.learned(keys[live:], priority[live:])
            keys, priority = keys[:live], priority[:live]
        self.update(keys, np.asarray(priority, np.float64))

    # ------------------------------------------------------------------------------------------------------ for anybody

    def stats(self) -> dict[str, float]:
        """The inbox's rows, and ``items`` that may be sampled."""
        return self._inbox.stats() | {"items": len(self.selector)}

    def state(self) -> Tree:
        """Between two rounds, a copy of all but the inbox and the rows, which the journal has."""
        return self._progress() | Store.state(self) | {"shelf": {} if self.shelf is None else self.shelf.state()}

    def load(self, state: Tree) -> None:
        """The inverse, into a replay of the same plan whose inbox was loaded; the rows are the journal's to load after it."""
        Store.load(self, state)
        self._rounds = state["rounds"]
        if self.shelf is not None:
            self.shelf.load(state["shelf"])

    def close(self) -> None:
        """Nothing is sampled any more."""
        if self._thread is not None:
            self._thread.shutdown()
        if self.shelf is not None:
            self.shelf.ring.close()
        Store.close(self)
