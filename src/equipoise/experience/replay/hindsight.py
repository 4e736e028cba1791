"""Hindsight experience replay (Andrychowicz et al. 2017, arXiv:1707.01495): an item as if another
goal had been desired.

The goal is one that was achieved in the item's own episode: after the item's first row, uniformly
("future", the paper's best), at its end ("final"), or anywhere in it ("episode"). Stored rows stay
as they are; of a gathered window the desired goal, the rewards, and the env's terminations are
written over, as far as the episode goes. An episode that is still running goes as far as its newest
observation, and an episode whose beginning was overwritten begins at its oldest row.

Each row has the number of its episode within its stream, and two row numbers are kept of each
episode: the first, and the number of the last observation so far. So an item costs the same however
long its episode is.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from equipoise.experience.replay.row_buffer import Ints, RowBuffer
from equipoise.types import Array, ReplaySettings, Trajectory

PER_PLACE = 20  # bytes
ACHIEVED = "obs/achieved_goal"


class Goals(Protocol):
    """The rules of the goal env (``envs.goals``)."""

    def reward(self, achieved: Array, desired: Array) -> Array: ...  # [k, ...] each -> [k] float32
    # [k] bool; None: an episode ends where it did
    def terminated(self, achieved: Array, desired: Array) -> Array | None: ...
    def close(self) -> None: ...


class Hindsight:
    def __init__(self, ring: RowBuffer, goals: Goals, settings: ReplaySettings) -> None:
        """Raise ValueError for rows without a desired goal that can be replaced."""
        if stacked := [
            path for path in ring.layout.stacks if path in (ACHIEVED, "obs/desired_goal")
        ]:
            raise ValueError(
                "replay.relabel: expected goals that are no stacks of frames, got "
                f"{', '.join(stacked)}"
            )
        if ring.layout.state:
            raise ValueError(
                "replay.relabel: expected a network without a recurrent state, which would be one "
                "of the old goal"
            )
        self.goals = goals
        self._ring = ring
        self._share = settings.relabel
        self._strategy = settings.strategy
        # An episode has a row at least, so that as many numbers as slots are enough: they come
        # round, as the slots do.
        self._number = np.zeros(ring.streams, np.int64)  # number of the newest episode
        self._episode = np.zeros((ring.slots, ring.streams), np.int32)  # by place
        self._begin = np.zeros((ring.slots, ring.streams), np.int64)  # by episode: the first row
        # by episode: the row of the last observation
        self._end = np.zeros((ring.slots, ring.streams), np.int64)
        self._follows = True  # True while all of this agrees with the ring's rows

    def insert(self, column: int) -> None:
        """Note the episodes of a block that the ring has just taken in, of the streams in
        ``column`` and after.
        """
        if self._follows:
            self._follow(column, self._ring.unroll)

    def load(self) -> None:
        """Note that the ring is being loaded: everything here is computed again from its rows."""
        self._follows = False

    def _follow(self, column: int, rows: int) -> None:
        """Follow the newest ``rows`` of the streams in ``column`` and after; earlier rows are known
        or not held.
        """
        ring, columns = self._ring, np.arange(column, column + self._ring.block)
        # The row before, the rows, and the observation after.
        around = (ring.head(columns[:1]) + np.arange(-rows - 1, 1)) % ring.slots
        row, real, first = (
            ring.leaf(path, around[:, None] * ring.streams + columns)
            for path in ("row", "mask", "first")
        )  # [R + 2, block] each
        follows = row[:-1] + 1 == row[1:]
        follows[-1] = True  # the last observation is no row yet
        begins = first[1:-1] | ~real[:-2] | ~follows[:-1]
        number = (
            np.concatenate([self._number[None, columns], self._number[columns] + begins.cumsum(0)])
            % ring.slots
        )
        self._number[columns] = number[-1]
        self._episode[around[1:-1, None], columns] = number[1:]
        row, real = row[:-1], real[:-1]
        # An index that comes again leaves its last value, which is that of the newest row.
        self._begin[number[1:][begins], np.broadcast_to(columns, begins.shape)[begins]] = row[1:][
            begins
        ]
        self._end[number, columns] = row + (real & ~first[1:] & follows)

    def relabel(self, data: Trajectory, places: Ints, rng: np.random.Generator) -> None:
        """Replace the goal, in place, of a share of the windows that begin at ``places`` [N]."""
        ring, n = self._ring, len(places)
        if not self._follows:
            for column in range(0, ring.streams, ring.block):
                self._follow(column, ring.slots - ring.unroll)
            self._follows = True
        chosen, u = rng.random(n) < self._share, rng.random(n)
        slots, columns = np.divmod(places, ring.streams)
        row, episode = data.context["start"].numpy(), self._episode[slots, columns]
        end = self._end[episode, columns]
        items = np.flatnonzero(chosen & (end > row))
        if not len(items):
            return
        slots, columns, row, end, u = slots[items], columns[items], row[items], end[items], u[items]
        low = row + 1
        if self._strategy == "final":
            low = end
        elif self._strategy == "episode":
            held = (slots - ring.head(columns) - ring.unroll) % ring.slots  # rows before this one
            low = np.maximum(self._begin[episode[items], columns], row - held) + 1
        wanted = low + (u * (end - low + 1)).astype(np.int64)
        goal = ring.leaf(ACHIEVED, (slots + wanted - row) % ring.slots * ring.streams + columns)
        self._rewrite(data, items, goal, end - row)

    def _rewrite(self, data: Trajectory, items: Ints, goal: Array, left: Ints) -> None:
        """Write ``goal`` [k, ...] into the windows ``items`` [k], whose episode goes on for
        ``left`` [k] rows.
        """
        desired, achieved = data.obs["desired_goal"].numpy(), data.obs["achieved_goal"].numpy()
        t, k = np.nonzero(np.arange(len(desired))[:, None] <= left)
        desired[t, items[k]] = goal[k]
        t, k = np.nonzero(np.arange(len(data.reward))[:, None] < left)
        reached, wanted = achieved[t + 1, items[k]], goal[k]
        data.reward.numpy()[t, items[k]] = self.goals.reward(reached, wanted)
        if (ended := self.goals.terminated(reached, wanted)) is not None:
            data.bootstrap.numpy()[t, items[k]] = ~ended
