"""A shard: a worker that keeps the rows of some actors and answers the learner's requests
(``mailbox.py``).

A shard reads blocks where actors wrote them, in the inbox, and writes the windows that it draws
into a batch that the learner reads in place. Stacks of frames are written out in full there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from equipoise import tree
from equipoise.clock import Clock
from equipoise.experience.layout import columns
from equipoise.experience.replay.mailbox import Request, ShardMailbox
from equipoise.experience.replay.plan import ReplayPlan
from equipoise.experience.replay.store import Store
from equipoise.publishing import publish
from equipoise.types import LateSave, StateReader, StateWriter, Tick, Trajectory, Tree

PARTS = ("insert", "sample", "gather", "priorities")  # "gather": windows, decoded, into the batch


class Shard:
    """``Worker``. STARVED: every request is done. BLOCKED: a save has yet to read rows that are to
    be overwritten.
    """

    ready = Tick.STARVED

    def __init__(
        self,
        plan: ReplayPlan,
        store: Store,
        mailbox: ShardMailbox,
        number: int,
        *,
        block: Callable[[int], Trajectory],
        wake: Callable[[], object],
        clock: Clock,
    ) -> None:
        """``block``: the inbox's block at a place; ``wake``: wake the learner for an answer;
        ``number``: among the shards of the policy.
        """
        self.store, self.number = store, number
        self._plan = plan
        self._mailbox = mailbox
        self._mine = mailbox.shards[number]
        self._block = block
        self._wake = wake
        self._clock = clock
        self._life = int(self._mine["life"][0])
        shards = self._plan.settings.shards
        # A shard's part of a batch differs in size each time, and the ring keeps memory for each
        # size: so it comes in equal pieces.
        self._piece = -(-mailbox.batch // (2 * shards))

    def tick(self) -> Tick:
        mine = self._mine
        if mine["seen"][0] != self._life or mine["answered"][0] == mine["asked"][0]:
            return Tick.STARVED
        self._clock.begin()
        answered = int(mine["answered"][0])
        kind, *numbers = mine["request"][answered % len(mine["request"])].tolist()
        if kind == Request.INSERT:
            if self.store.journal is not None and not self.store.journal.may_insert(1):
                return Tick.BLOCKED
            self.store.insert(self._block(numbers[0]))
            self._clock.lap("insert")
            mine["inserted"][0] += 1
        elif kind == Request.DRAW:
            self._draw(*numbers)
        elif kind == Request.UPDATE:
            self._update(*numbers)
            self._clock.lap("priorities")
        mine["items"][0], mine["mass"][0] = len(self.store.selector), self.store.selector.mass
        publish(mine["answered"], 0, answered + 1)
        self._wake()
        return Tick.WORKED

    def _draw(self, buffer: int, begin: int, n: int) -> None:
        """Draw ``n`` items into the columns from ``begin`` on."""
        store, batch = self.store, self._mailbox.batches[buffer]
        places, probability = store.draw(n)
        batch["probability"][begin : begin + n] = probability
        self._clock.lap("sample", "gather")
        for at in range(0, n, self._piece):
            # fill the last piece by repeating some of it
            piece = np.resize(places[at : at + self._piece], self._piece)
            count = min(self._piece, n - at)
            self._copy(store.windows(piece), batch, begin + at, count)
            where = slice(begin + at, begin + at + count)
            batch["keys"][where, 0] = piece[:count] * self._plan.settings.shards + self.number
            batch["keys"][where, 1] = batch["data"]["context"]["start"][where]
        self._clock.lap("gather")

    def _copy(self, data: Trajectory, batch: Mapping[str, Tree], begin: int, count: int) -> None:
        fields = tree.numpy_views(data.fields())
        into = columns(batch["data"], begin, begin + count)
        tree.map(np.copyto, into, columns(fields, 0, count))

    def _update(self, begin: int, end: int, n: int) -> None:
        """Apply this shard's part of ``n`` new priorities and note the highest of all."""
        keys, priority = self._mailbox.priorities["keys"], self._mailbox.priorities["priority"]
        mine = keys[begin:end].copy()
        mine[:, 0] //= self._plan.settings.shards
        self.store.update(mine, priority[begin:end])
        self.store.selector.saw(float(priority[:n].max()))

    def save(self, to: StateWriter) -> LateSave:
        """Begin to save the store; the rows are written while the shard goes on."""
        assert self.store.journal is not None
        return self.store.journal.save(to, self.store.state())

    def load(self, source: StateReader) -> None:
        """Load the store, which is as it was saved then, with all rows."""
        assert self.store.journal is not None
        self.store.journal.restore(source, self.store.load)

    def close(self) -> None:
        self.store.close()
