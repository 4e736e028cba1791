"""Replay: every row of a policy is kept once, and learned from as often as the selector draws it.

For the actors it is a queue; for the learner a store of rows, fed in rounds (``feed.py`` has the
law). Here the store is the learner's own; ``sharded.py`` has several stores, each in a worker of
its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from equipoise import schema, tree
from equipoise.experience.recorded.offline import RecordedRows, beside
from equipoise.experience.replay.feed import Replayed, ReplayFeed
from equipoise.experience.replay.hindsight import Goals
from equipoise.experience.replay.plan import ReplayPlan
from equipoise.experience.replay.selectors import Fifo
from equipoise.experience.replay.store import Store
from equipoise.files import numbered
from equipoise.types import Array, Batch, LateSave, StateReader, StateWriter, Trajectory, Tree


class Replay(Replayed, Store):
    """``Experience`` of one policy, with the rows in the learner's process."""

    def __init__(
        self,
        plan: ReplayPlan,
        rounds: ReplayFeed,
        policy: str,
        *,
        seed: int,
        prefetch: bool = False,
        pinned: bool = False,
        file: str = "replay",
        room: str = "",
        folder: Path | None = None,
        goals: Goals | None = None,
        recorded: RecordedRows | None = None,
        priority: Callable[[Trajectory], Array | None] | None = None,
        wrote: Callable[[float], object] = lambda seconds: None,
        keep: Callable[[Trajectory], Trajectory] = lambda data: data,
    ) -> None:
        """``keep``: maps incoming rows [T, B] to the rows that are stored. ``recorded``: the rows
        of a data set, which make up ``dataset_share`` of every batch.

        ``prefetch``: the next batch is drawn and gathered by a thread while this one is learned
        from, where both are of one round: this batch's new priorities come too late for it.
        ``wrote`` is called with the seconds that writing a round took. The other arguments are as
        in ``Store``.
        """
        Replayed.__init__(self, plan, rounds, policy, ahead=prefetch)
        Store.__init__(
            self, plan, seed=seed, pinned=pinned, folder=folder, goals=goals, priority=priority
        )
        self.recorded, self._wrote, self._keep = recorded, wrote, keep
        # in a checkpoint: the file of all but the rows, and the folder of the rows
        self._file, self._room = numbered(file, plan.learner), room
        self._thread = ThreadPoolExecutor(1, "replay") if prefetch else None
        self._next: Future[Batch] | Batch | None = None
        self._buffer = 0

    def has_room(self) -> bool:
        """Would the next round overwrite nothing that is still to be saved, even if one actor wrote
        all of it?
        """
        return self.journal is None or self.journal.may_insert(self._plan.actors)

    def bring(self, keys: Array) -> None:
        if isinstance(self._next, Future):
            self._next.result()  # it reads rows that change now
        began, inbox = time.perf_counter(), self._rounds.inbox
        for place in inbox.places(keys):
            self.insert(self._keep(inbox.block(place)[self.policy]))
        self._wrote(time.perf_counter() - began)

    def items(self) -> int:
        return len(self.selector)

    def _ask(self, n: int) -> None:
        self._next = self._draw(n) if self._thread is None else self._thread.submit(self._draw, n)

    def _answer(self) -> Batch | None:
        prepared, self._next = self._next, None
        return prepared.result() if isinstance(prepared, Future) else prepared

    def _draw(self, n: int) -> Batch:
        self._buffer ^= 1  # the other buffer's batch is being learned from
        if self.recorded is None:
            return self._live(n)
        count = self._recorded_items(n)
        live = self._live(n - count)
        recorded = self.recorded.draw(count, self._rng, done=self._done, buffer=self._buffer)
        return beside(live, recorded)

    def _recorded_items(self, n: int) -> int:
        """Count the items of a batch of ``n`` that come from the data set: the last ones."""
        return 0 if self.recorded is None else self._plan.settings.recorded(n)

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

    def _in_turn(self, n: int) -> tuple[Array, torch.Tensor]:
        """Draw every item once. Seams are no items, so a round has fewer items than rows; the
        missing ones have the weight 0.
        """
        left = min(n, len(self.selector))
        places = np.zeros(n, np.int64)
        places[:left] = self.selector.sample(left, self._rng)[0]
        weight = torch.zeros(n)
        weight[:left] = 1.0
        return places, weight

    def learned(self, keys: Array, priority: Array | None) -> None:
        """Set new priorities [n] of items whose rows are still there."""
        if priority is None:
            return
        if isinstance(self._next, Future):
            self._next.result()  # it draws from priorities that change now
        priority = np.asarray(tree.on_host(priority), np.float64)
        if self.recorded is not None:
            live = len(keys) - self._recorded_items(len(keys))
            self.recorded.learned(keys[live:], priority[live:])
            keys, priority = keys[:live], priority[:live]
        self.update(keys, priority)

    # ---------------------------------------------------------------------------------- for anybody

    def state(self) -> Tree:
        """Copy the state between two rounds, without the queue and the rows,
        which the journal has.
        """
        rest = {
            "rounds": self._rounds.state(),
            "shelf": {} if self.recorded is None else self.recorded.state(),
        }
        return Store.state(self) | rest

    def load(self, state: Tree) -> None:
        """Load a state into a replay of the same plan, after its queue; the journal loads the rows
        afterwards.
        """
        schema.check(state, {"rounds": schema.count(), "*": schema.Anything()}, "replay")
        Store.load(self, state)
        self._rounds.taken = state["rounds"]
        if self.recorded is not None:
            self.recorded.load(state["shelf"])

    def save(self, to: StateWriter) -> LateSave:
        """Begin to save the replay: its rows are written while the learner goes on."""
        assert self.journal is not None
        return self.journal.save(to, self.state(), self._file, self._room)

    def restore(self, source: StateReader, learners: int) -> None:
        """As many learners as before: a resume with others is refused, since each has the rows of
        its actors.
        """
        assert self.journal is not None
        self.journal.restore(source, self.load, self._file, self._room)

    def close(self) -> None:
        """Close the replay: nothing is sampled any more."""
        if self._thread is not None:
            self._thread.shutdown()
        if self.recorded is not None:
            self.recorded.ring.close()
        Store.close(self)
