"""The rounds that a replay is fed in, and the law of its limiter; where the rows are is for others to say.

For the actors a replay is a queue, the inbox. A *round* is one block of every actor. The law of the limiter, with U updates of
N items to a round of R rows:

    updates done = U x rounds taken (after those that reach ``starts_at`` and fill a window),  samples per insert = U N / R

The learner never samples more than was paid for: after U updates it waits for the next round. The actors are never more than
``max_lag + 1`` rounds ahead: the inbox has no more blocks, and those of a round are dealt again after its last update. Neither
waits for the other at once, since a round in the inbox is taken whenever the updates of the last are done. A round after which
no window begins with a real row (every actor was replaced, every row is a seam) is released at once, and does not count. Where
all rows are lost amid a round, what it still owes is learned from the rounds that follow, which do not count until it is paid.

Keys are (place, the stream's row number there). A priority for a row that was overwritten since is ignored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch

from equipoise.experience.plan import ReplayPlan
from equipoise.experience.selectors import importance_weights
from equipoise.types import Array, Batch, Experience, Slot, Tree


class Rounds(ABC):
    """``Experience`` of one learner but for the store: asked for something, it may answer later (``_settled``)."""

    def __init__(self, plan: ReplayPlan, inbox: Experience, *, ahead: bool) -> None:
        """``ahead``: the next batch is asked for while this one is learned from, where both are of one round."""
        self._plan, self._inbox, self._ahead = plan, inbox, ahead
        self._rounds = 0
        self._owed = 0  # updates of this round that are not finished
        self._coming: Array | None = None  # the keys of a round that the store has not answered for
        self._taken: Array | None = None  # those of the round that is learned from: in the inbox until then
        self._asked = False  # for a batch that was not handed out
        self._ones = torch.empty(0)

    @abstractmethod
    def _bring(self) -> Array | None:
        """Give the store the next round of the inbox -> its keys; None: it is not complete, or there is no room yet."""

    def _settled(self) -> bool:
        """Has the store done all that it was asked for, but a batch?"""
        return True

    def _emptied(self) -> bool:
        """Has the store lost every item that it had?"""
        return False

    @abstractmethod
    def _items(self) -> int:
        """How many may be sampled."""

    @abstractmethod
    def _ask(self, n: int) -> None:
        """For a batch of ``n`` items, drawn from what is there now."""

    @abstractmethod
    def _answer(self) -> Batch | None:
        """The batch that was asked for; None: not yet."""

    # ------------------------------------------------------------------------------------------------- the actor's side

    def reserve(self, streams: Array) -> Slot | None:
        return self._inbox.reserve(streams)

    def commit(self, slot: Slot) -> None:
        self._inbox.commit(slot)

    def restart(self, slot: Slot) -> None:
        self._inbox.restart(slot)

    def cancel(self, streams: Array) -> None:
        self._inbox.cancel(streams)

    # ----------------------------------------------------------------------------------------------- the learner's side

    def sample(self, n: int) -> Batch | None:
        """``n`` windows, or None until the next round is complete and the store has answered."""
        if not self._settled():
            return None
        while self._owed == 0 or self._coming is not None or self._emptied():
            if not self._take():
                return None
        if not self._asked:
            self._ask(n)
            self._asked = True
        if (batch := self._answer()) is None:
            return None
        if len(batch.keys) != n:
            raise ValueError(f"expected a batch of {len(batch.keys)} like the last, got {n}")
        self._asked = self._ahead and self._owed > 1
        if self._asked:
            self._ask(n)
        return batch

    def _take(self) -> bool:
        """One step towards the next updates -> False: it is not done yet."""
        if self._coming is None:
            if self._taken is not None:  # all that is of this round and before is lost
                self._release()
            self._coming = self._bring()
        if self._coming is None or not self._settled():
            return False
        self._taken, self._coming = self._coming, None
        fills = self._owed > 0  # a round that all rows were lost of
        if not self._items() and (fills or self._rounds + 1 >= self._plan.begins):
            self._release()
            return True
        if not fills:
            self._rounds += 1
            self._owed = self._plan.settings.updates if self._rounds >= self._plan.begins else 0
        if self._owed == 0:
            self._release()
        return True

    def _release(self) -> None:
        """The actors may write over the round."""
        assert self._taken is not None
        self._inbox.finish(self._taken)
        self._taken = None

    def finish(self, keys: Array) -> None:
        """The learner is done with this update; after the round's last the actors may write over the round."""
        self._owed -= 1
        if self._owed == 0:
            self._release()

    @property
    def _done(self) -> float:
        """The share of the rounds with updates that are over."""
        return min(max(self._rounds - self._plan.begins, 0) / max(self._plan.rounds - self._plan.begins, 1), 1.0)

    def _weight(self, probability: Array) -> torch.Tensor:
        """[n] float32 of items that were drawn with these."""
        settings = self._plan.settings
        if settings.selector != "prioritized":
            if len(self._ones) != len(probability):
                self._ones = torch.ones(len(probability))
            return self._ones
        beta = settings.beta + (1.0 - settings.beta) * self._done
        return torch.from_numpy(importance_weights(probability, beta).astype(np.float32))

    def _progress(self) -> Tree:
        """What is saved of all this, between two rounds."""
        if self._owed > 1:
            raise RuntimeError(f"state: expected a replay between two rounds, got one that owes {self._owed} updates")
        return {"rounds": self._rounds}
