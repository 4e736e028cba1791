"""The rounds that the learners of a run are fed in: the law of the queue, and of a replay's
limiter.

A *round* is one batch of the queue; if the policies have replays it is one block of every actor.
Each policy's experience takes its part of a round, and all of them learn from a round together. The
law of the limiter, with U updates of N items to a round of R rows:

    updates done = U x rounds taken (after the rounds that reach ``starts_at`` and fill a window),
    samples per insert = U N / R

The learner never samples more than was paid for: after U updates it waits for the next round. The
actors are never more than ``max_lag + 1`` rounds ahead: the queue has no more blocks, and the
blocks of a round are dealt again after its last update. They cannot wait for each other, since a
round in the queue is taken whenever the updates of the last one are done.

A round after which some policy has no window that begins with a real row is released at once, and
does not count: every actor was replaced, every row is a seam, or the policy's agents were never
there. If a policy loses all its rows during a round, the updates that remain are made from the
following rounds, which do not count until then.

If nothing is replayed U is 1, the first round is learned from, and a policy's experience is its
part of the round itself (``Fresh``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch

from equipoise.experience.replay.plan import ReplayPlan
from equipoise.experience.replay.selectors import importance_weights
from equipoise.types import Array, Batch, LateSave, StateReader, StateWriter, Trajectory, Tree


class Inbox(Protocol):
    """The learner's side of a queue."""

    def take(self) -> Array | None: ...  # the keys of the next batch
    def coming(self) -> Array | None: ...  # the same, without taking it
    def places(self, keys: Array) -> list[int]: ...
    def block(self, place: int) -> Mapping[str, Trajectory]: ...
    def batches(self, keys: Array) -> Mapping[str, Batch]: ...
    def finish(self, keys: Array) -> None: ...
    def stats(self) -> dict[str, float]: ...
    def state(self) -> Tree: ...


class ReplayFeed:
    """The limiter of a run: it takes rounds from the queue and gives each policy's ``Branch`` its
    part.
    """

    def __init__(self, inbox: Inbox, *, begins: int = 1, updates: int = 1) -> None:
        """``begins``: the round, from 1, that the first updates follow; ``updates``: how many
        follow each.
        """
        self.inbox, self.begins, self._updates = inbox, begins, updates
        self.branches: list[Branch] = []
        self.taken = 0  # rounds that count
        self.owed = 0  # updates of this round that are not finished
        self._finished = 0  # branches, of this update
        # the keys of a round that some branch has not answered for
        self._coming: Array | None = None
        # the keys of the round that is learned from: in the queue until then
        self._current: Array | None = None

    def ready(self) -> bool:
        """Is there an update to be made? It may take the next round to say so."""
        if not self._settled():
            return False
        while (
            self.owed == 0
            or self._coming is not None
            or any(branch.emptied() for branch in self.branches)
        ):
            if not self._take():
                return False
        return True

    def adopt(self, keys: Array) -> None:
        """A round that was learned from, by a learner that died, is still to be finished."""
        self._current, self.owed, self.taken = keys, 1, max(self.taken, 1)

    def finish(self) -> None:
        """A branch is done with this update; after the round's last the actors may write over the
        round.
        """
        self._finished += 1
        if self._finished == len(self.branches):
            self._finished = 0
            self.owed -= 1
            if self.owed == 0:
                self._release()

    def _settled(self) -> bool:
        return all(branch.settled() for branch in self.branches)

    def _take(self) -> bool:
        """One step towards the next updates -> False: it is not done yet."""
        if self._coming is None:
            # all that some policy has of this round and before is lost
            if self._current is not None:
                self._release()
            if (
                not all(branch.has_room() for branch in self.branches)
                or (keys := self.inbox.take()) is None
            ):
                return False
            for branch in self.branches:
                branch.bring(keys)
            self._coming = keys
        if not self._settled():
            return False
        self._current, self._coming = self._coming, None
        fills = self.owed > 0  # a round that all rows of some policy were lost of
        lacking = not all(branch.items() for branch in self.branches)
        if lacking and (fills or self.taken + 1 >= self.begins):
            self._release()
            return True
        if not fills:
            self.taken += 1
            self.owed = self._updates if self.taken >= self.begins else 0
        if self.owed == 0:
            self._release()
        return True

    def _release(self) -> None:
        """The actors may write over the round."""
        assert self._current is not None
        self.inbox.finish(self._current)
        self._current = None

    def state(self) -> int:
        """The rounds taken: all that is saved, between two rounds."""
        if self.owed > 1:
            raise RuntimeError(
                f"state: expected a replay between two rounds, got one that owes {self.owed} "
                "updates"
            )
        return self.taken


class Branch(ABC):
    """``Experience`` of one policy, fed by ``ReplayFeed``. The store may answer later than it is
    asked (``settled``).
    """

    def __init__(self, rounds: ReplayFeed, policy: str, *, ahead: bool = False) -> None:
        """``ahead``: the next batch is asked for while this one is learned from, where both are of
        one round.
        """
        self._rounds, self.policy, self._ahead = rounds, policy, ahead
        self._asked = False  # for a batch that was not handed out
        rounds.branches.append(self)

    # ---------------------------------------------------------------------- asked by ``ReplayFeed``

    def has_room(self) -> bool:
        """May the next round be brought?"""
        return True

    @abstractmethod
    def bring(self, keys: Array) -> None:
        """Take in this policy's part of a round of the queue."""

    def settled(self) -> bool:
        """Has the store done all that it was asked for, but a batch?"""
        return True

    def emptied(self) -> bool:
        """Has the store lost every item that it had?"""
        return False

    @abstractmethod
    def items(self) -> int:
        """How many may be sampled."""

    # ---------------------------------------------------------------------------------- the learner

    @abstractmethod
    def _ask(self, n: int) -> None:
        """Ask for a batch of ``n`` items, drawn from what is there now."""

    @abstractmethod
    def _answer(self) -> Batch | None:
        """The batch that was asked for; None: not yet."""

    def sample(self, n: int) -> Batch | None:
        """``n`` windows, or None until the next round is complete and the store has answered."""
        if not self._rounds.ready():
            return None
        if not self._asked:
            self._ask(n)
            self._asked = True
        if (batch := self._answer()) is None:
            return None
        if len(batch.keys) != n:
            raise ValueError(f"expected a batch of {len(batch.keys)} windows, got {n}")
        self._asked = self._ahead and self._rounds.owed > 1
        if self._asked:
            self._ask(n)
        return batch

    def coming(self) -> Batch | None:
        """The batch that ``sample`` gives next, if that is known; it is only to be read."""
        return None

    @abstractmethod
    def learned(self, keys: Array, priority: Array | None) -> None: ...

    def adopt(self, keys: Array) -> None:
        self._rounds.adopt(keys)

    def finish(self, keys: Array) -> None:
        """The learner is done with this update."""
        self._rounds.finish()

    def stats(self) -> dict[str, float]:
        """The rows of the queue, and ``items`` that may be sampled."""
        return self._rounds.inbox.stats() | {"items": self.items()}

    @abstractmethod
    def save(self, to: StateWriter) -> LateSave | None:
        """Put what is kept besides the queue."""

    @abstractmethod
    def restore(self, source: StateReader, learners: int) -> None:
        """Load the state that ``save`` put at each of ``learners`` learners; the queue is loaded
        already.
        """

    @abstractmethod
    def close(self) -> None:
        """Nothing is sampled any more."""


class Fresh(Branch):
    """The rows of each round, learned from once and where they lie."""

    def bring(self, keys: Array) -> None:
        self._keys = keys

    def items(self) -> int:
        return len(self._keys)

    def _ask(self, n: int) -> None: ...

    def _answer(self) -> Batch:
        return self._rounds.inbox.batches(self._keys)[self.policy]

    def coming(self) -> Batch | None:
        keys = self._rounds.inbox.coming()
        return None if keys is None else self._rounds.inbox.batches(keys)[self.policy]

    def learned(self, keys: Array, priority: Array | None) -> None:
        """Nothing: every item is learned from once."""

    def save(self, to: StateWriter) -> None:
        """Nothing: the rows are the queue's."""

    def restore(self, source: StateReader, learners: int) -> None: ...

    def close(self) -> None: ...


class Replayed(Branch):
    """A branch whose rows are learned from again."""

    def __init__(self, plan: ReplayPlan, rounds: ReplayFeed, policy: str, *, ahead: bool) -> None:
        super().__init__(rounds, policy, ahead=ahead)
        self._plan = plan
        self._ones = torch.empty(0)

    @property
    def _done(self) -> float:
        """The share of the rounds with updates that are over."""
        begins = self._rounds.begins
        return min(max(self._rounds.taken - begins, 0) / max(self._plan.rounds - begins, 1), 1.0)

    def _weight(self, probability: Array) -> torch.Tensor:
        """[n] float32 of items that were drawn with these probabilities."""
        settings = self._plan.settings
        if settings.selector != "prioritized":
            if len(self._ones) != len(probability):
                self._ones = torch.ones(len(probability))
            return self._ones
        beta = settings.beta + (1.0 - settings.beta) * self._done
        # Of several learners the largest weight of all their items becomes 1, which the learner
        # does.
        weight = (
            importance_weights(probability, beta)
            if self._plan.learners == 1
            else probability**-beta
        )
        return torch.from_numpy(weight.astype(np.float32))
