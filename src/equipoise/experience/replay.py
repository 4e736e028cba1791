"""Replay: every row is kept once, and learned from as often as its selector likes.

For the actors it is a queue, the inbox; for the learner a ring of rows. A *round* is one block of every actor. The law of the
limiter, with U updates of N items to a round of R rows:

    updates done = U x rounds taken (after those that reach ``starts_at`` and fill a window),  samples per insert = U N / R

The learner never samples more than was paid for: after U updates it waits for the next round. The actors are never more than
``max_lag + 1`` rounds ahead: the inbox has no more blocks, and those of a round are dealt again after its last update. Neither
waits for the other at once, since a round in the inbox is taken whenever the updates of the last are done. A round after which
no window begins with a real row (every actor was replaced, every row is a seam) is released at once, and does not count.

Keys are (place, the stream's row number there). A priority for a row that was overwritten since is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise import tree
from equipoise.envs.snapshot import generator, generator_state
from equipoise.experience import hindsight
from equipoise.experience.codec import chosen
from equipoise.experience.hindsight import Goals, Hindsight
from equipoise.experience.journal import Journal
from equipoise.experience.layout import RowSpec, columns
from equipoise.experience.offline import Shelf, beside
from equipoise.experience.ring import Layout, Ring, smallest
from equipoise.experience.rows import without_observations
from equipoise.experience.selectors import Fifo, Prioritized, Selector, Uniform, importance_weights
from equipoise.types import Array, Batch, Experience, Slot, Stack, Trajectory, Tree
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


class Replay:
    """``Experience`` of one learner; actors have the inbox itself."""

    def __init__(
        self, plan: ReplayPlan, inbox: Experience, *, seed: int, prefetch: bool = False, pinned: bool = False,
        folder: Path | None = None, goals: Goals | None = None, shelf: Shelf | None = None,
        priority: Callable[[Trajectory], Array | None] | None = None,
    ) -> None:  # fmt: skip
        """``shelf``: a data set's rows, which ``dataset_share`` of every batch is of.

        ``prefetch``: the next batch is drawn and gathered by a thread while this one is learned from, where both are of one
        round: it knows nothing of this one's new priorities. ``pinned``: into memory that a GPU reads by itself. ``folder``:
        where checkpoints keep the rows; None: nowhere. ``goals``: what ``relabel`` asks what another goal would have been
        worth; closed with the replay. ``priority``: of items as they enter, by their rows; None: the highest so far.
        """
        self._plan, self._inbox, self.shelf, self._first_priority = plan, inbox, shelf, priority
        self.ring = Ring(
            plan.layout, slots=plan.slots, block=plan.block, actors=plan.actors, unroll=plan.unroll, window=plan.window,
            folder=plan.settings.file, codecs=plan.codecs, threads=plan.settings.decode_threads, pinned=pinned,
        )  # fmt: skip
        self.selector = _selector(plan.settings, self.ring)
        self.journal = None if folder is None else Journal(self.ring, folder)
        if plan.settings.relabel and goals is None:
            raise ValueError(f"goals: expected those of the env with replay.relabel={plan.settings.relabel:g}, got none")
        self._hindsight = Hindsight(self.ring, goals, plan.settings) if plan.settings.relabel and goals is not None else None
        self._rng = np.random.default_rng(seed)
        self._rounds = 0
        self._owed = 0  # updates of this round that are not finished
        self._taken: Array | None = None  # the keys of the round in the inbox, until then
        self._ones: dict[int, torch.Tensor] = {}
        self._ahead = ThreadPoolExecutor(1, "replay") if prefetch else None
        self._next: Future[Batch] | None = None
        self._buffer = 0

    # ------------------------------------------------------------------------------------------------- the actor's side

    def reserve(self, streams: Array) -> Slot | None:
        return self._inbox.reserve(streams)

    def commit(self, slot: Slot) -> None:
        self._inbox.commit(slot)

    def cancel(self, streams: Array) -> None:
        self._inbox.cancel(streams)

    # ----------------------------------------------------------------------------------------------- the learner's side

    def sample(self, n: int) -> Batch | None:
        """``n`` windows, or None until the next round is complete."""
        while self._owed == 0:
            if not self._take():
                return None
        if (prepared := self._next) is None:
            batch = self._draw(n)
        else:
            batch, self._next = prepared.result(), None
            if len(batch.keys) != n:
                raise ValueError(f"expected a batch of {len(batch.keys)} like the last, got {n}")
        if self._ahead is not None and self._owed > 1:
            self._next = self._ahead.submit(self._draw, n)
        return batch

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
            places, probability = self.selector.sample(n, self._rng)
            weight = self._weight(probability)
        data = self.ring.gather(places, self._buffer)
        if self._hindsight is not None:
            self._hindsight.relabel(data, places, self._rng)
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

    def _take(self) -> bool:
        """A round out of the inbox, if one is complete, and none of what it overwrites is still to be saved."""
        if self.journal is not None and not self.journal.may_insert(self._plan.actors):  # any of them may be of one actor
            return False
        batch = self._inbox.sample(self._plan.streams)
        if batch is None:
            return False
        self.insert(Trajectory(**{name: tree.numpy_views(getattr(batch.data, name)) for name in Trajectory.__slots__}))
        if self._rounds + 1 >= self._plan.begins and not len(self.selector):
            self._inbox.finish(batch.keys)
            return True
        self._rounds += 1
        if self._rounds < self._plan.begins:
            self._inbox.finish(batch.keys)
        else:
            self._owed, self._taken = self._plan.settings.updates, batch.keys
        return True

    def insert(self, data: Trajectory) -> None:
        """Rows of whole blocks [T, k * block], numpy arrays; the blocks need not lie in the order of their streams."""
        block, streams = self._plan.block, data.context["stream"]
        if len(streams) == block:
            self._insert(data, int(streams[0]) // self._plan.span * block)
            return
        fields = {name: getattr(data, name) for name in Trajectory.__slots__}
        for at in range(0, len(streams), block):
            mine = Trajectory(**columns(fields, at, at + block, self._plan.row))
            self._insert(mine, int(streams[at]) // self._plan.span * block)

    def _insert(self, data: Trajectory, column: int) -> None:
        for where, there in self.ring.insert(data, column):
            self.selector.put(where, there)
            if self._first_priority is not None and there.any():
                slots, streams = there.nonzero()
                places = (where[0].start + slots) * self.ring.streams + where[1].start + streams
                priority = self._first_priority(without_observations(self.ring, places))
                if priority is not None:
                    self.selector.update(places, np.asarray(priority, np.float64))
        if self._hindsight is not None:
            self._hindsight.insert(column)

    def _weight(self, probability: Any) -> torch.Tensor:
        settings, n = self._plan.settings, len(probability)
        if settings.selector != "prioritized":
            if n not in self._ones:
                self._ones[n] = torch.ones(n)
            return self._ones[n]
        beta = settings.beta + (1.0 - settings.beta) * self._done
        return torch.from_numpy(importance_weights(probability, beta).astype(np.float32))

    @property
    def _done(self) -> float:
        """The share of the rounds with updates that are over."""
        return min(max(self._rounds - self._plan.begins, 0) / max(self._plan.rounds - self._plan.begins, 1), 1.0)

    def learned(self, keys: Array, priority: Array | None) -> None:
        """New priorities [n] for items; of rows that are still there."""
        if priority is None:
            return
        if self._next is not None:
            self._next.result()  # it draws from what changes now
        if isinstance(priority, torch.Tensor):
            priority = priority.cpu()
        if self.shelf is not None:
            live = len(keys) - self._recorded(len(keys))
            self.shelf.learned(keys[live:], priority[live:])
            keys, priority = keys[:live], priority[:live]
        places, priority = keys[:, 0], np.asarray(priority, np.float64)
        there = self.ring.row(places) == keys[:, 1]
        if not there.all():
            places, priority = places[there], priority[there]
        self.selector.update(places, priority)

    def finish(self, keys: Array) -> None:
        """The learner is done with this update; after the round's last the actors may write over the round."""
        self._owed -= 1
        if self._owed == 0:
            assert self._taken is not None
            self._inbox.finish(self._taken)
            self._taken = None

    # ------------------------------------------------------------------------------------------------------ for anybody

    def stats(self) -> dict[str, float]:
        """The inbox's rows, and ``items`` that may be sampled."""
        return self._inbox.stats() | {"items": len(self.selector)}

    def state(self) -> Tree:
        """Between two rounds, a copy of all but the inbox and the rows, which the journal has."""
        if self._owed > 1:
            raise RuntimeError(f"state: expected a replay between two rounds, got one that owes {self._owed} updates")
        return {
            "rounds": self._rounds, "rng": generator_state(self._rng), "ring": self.ring.state(),
            "selector": self.selector.state(), "shelf": {} if self.shelf is None else self.shelf.state(),
        }  # fmt: skip

    def load(self, state: Tree) -> None:
        """The inverse, into a replay of the same plan whose inbox was loaded; the rows are the journal's to load after it."""
        self.ring.load(state["ring"])
        self.selector.load(state["selector"])
        self._rounds, self._rng = state["rounds"], generator(state["rng"])
        if self.shelf is not None:
            self.shelf.load(state["shelf"])
        if self._hindsight is not None:
            self._hindsight.load()

    def close(self) -> None:
        """Nothing is sampled any more."""
        if self.journal is not None:
            self.journal.stop()
        if self._ahead is not None:
            self._ahead.shutdown()
        self.ring.close()
        if self.shelf is not None:
            self.shelf.ring.close()
        if self._hindsight is not None:
            self._hindsight.goals.close()


def _selector(settings: Settings, ring: Ring) -> Selector:
    if settings.selector == "prioritized":
        return Prioritized(ring.slots, ring.streams, alpha=settings.alpha, epsilon=settings.epsilon)
    return Uniform(ring.slots, ring.streams) if settings.selector == "uniform" else Fifo(ring.slots, ring.streams)
