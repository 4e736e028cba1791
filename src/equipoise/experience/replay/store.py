"""The store of a replay: the rows of some actors,
with a selector of items and a journal on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from equipoise.envs.restore.snapshot import generator, generator_state
from equipoise.experience.layout import columns
from equipoise.experience.replay.hindsight import Goals, Hindsight
from equipoise.experience.replay.journal import Journal
from equipoise.experience.replay.plan import ReplayPlan
from equipoise.experience.replay.row_buffer import Extent, RowBuffer
from equipoise.experience.replay.rows import without_observations
from equipoise.experience.replay.selectors import Fifo, Prioritized, Selector, Uniform
from equipoise.types import Array, Trajectory, Tree
from equipoise.types import ReplaySettings as Settings


class Store:
    """Holds the rows of actors shard, shard + N, shard + 2N, ... of N shards."""

    def __init__(
        self,
        plan: ReplayPlan,
        *,
        seed: int,
        shard: int = 0,
        pinned: bool = False,
        folder: Path | None = None,
        goals: Goals | None = None,
        priority: Callable[[Trajectory], Array | None] | None = None,
    ) -> None:
        """``pinned``: windows come into memory that a GPU reads by itself. ``folder``: the
        directory of rows for checkpoints; None: no saving. ``goals``: the rules that ``relabel``
        asks for rewards of other goals; closed with the store. ``priority``: computes the first
        priority of items from their rows; None: the highest so far.
        """
        self._plan, self._first_priority = plan, priority
        self.ring = RowBuffer(
            plan.layout,
            Extent(
                slots=plan.slots,
                block=plan.block,
                actors=plan.of_shard(shard),
                unroll=plan.unroll,
                window=plan.window,
                numbers=plan.numbers(shard),
            ),
            folder=plan.settings.file,
            codecs=plan.codecs,
            threads=plan.settings.decode_threads,
            pinned=pinned,
        )
        self.selector = _selector(plan.settings, self.ring)
        self.journal = None if folder is None else Journal(self.ring, folder)
        if plan.settings.relabel and goals is None:
            raise ValueError(
                f"goals: expected those of the env with replay.relabel={plan.settings.relabel:g}, "
                "got none"
            )
        self._hindsight = (
            Hindsight(self.ring, goals, plan.settings)
            if plan.settings.relabel and goals is not None
            else None
        )
        self._rng = np.random.default_rng(seed)

    def insert(self, data: Trajectory) -> None:
        """Insert rows of whole blocks [T, k * block], numpy arrays, in any order of streams."""
        block, streams = self._plan.block, data.context["stream"]
        if len(streams) == block:
            self._insert(data, self._column(int(streams[0])))
            return
        fields = data.fields()
        for at in range(0, len(streams), block):
            mine = Trajectory(**columns(fields, at, at + block))
            self._insert(mine, self._column(int(streams[at])))

    def _column(self, stream: int) -> int:
        """The ring's column at which the streams of an actor begin; ``stream`` is the actor's
        first.
        """
        return self._plan.actor(stream) // self._plan.settings.shards * self._plan.block

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

    def draw(self, n: int) -> tuple[Array, Array]:
        """Draw ``n`` places -> the places, and the probability of each."""
        return self.selector.sample(n, self._rng)

    def windows(self, places: Array, buffer: int = 0) -> Trajectory:
        """Gather windows that begin at ``places`` [N], some with another goal; the next call of N
        and ``buffer`` overwrites them.
        """
        data = self.ring.gather(places, buffer)
        if self._hindsight is not None:
            self._hindsight.relabel(data, places, self._rng)
        return data

    def update(self, keys: Array, priority: Array) -> None:
        """Set new priorities [n] float64 of the items [n, 2] whose rows are still there."""
        places = keys[:, 0]
        there = self.ring.row(places) == keys[:, 1]
        if not there.all():
            places, priority = places[there], priority[there]
        self.selector.update(places, priority)

    def state(self) -> Tree:
        """Copy the state without the rows, which the journal has."""
        return {
            "rng": generator_state(self._rng),
            "ring": self.ring.state(),
            "selector": self.selector.state(),
        }

    def load(self, state: Tree) -> None:
        """Load a state into a store of the same plan; the journal loads the rows afterwards."""
        self.ring.load(state["ring"])
        self.selector.load(state["selector"])
        self._rng = generator(state["rng"])
        if self._hindsight is not None:
            self._hindsight.load()

    def close(self) -> None:
        if self.journal is not None:
            self.journal.stop()
        self.ring.close()
        if self._hindsight is not None:
            self._hindsight.goals.close()


def _selector(settings: Settings, ring: RowBuffer) -> Selector:
    if settings.selector == "prioritized":
        return Prioritized(ring.slots, ring.streams, alpha=settings.alpha, epsilon=settings.epsilon)
    return (
        Uniform(ring.slots, ring.streams)
        if settings.selector == "uniform"
        else Fifo(ring.slots, ring.streams)
    )
