"""A queue of one policy, and what one policy learns from it, without the mappings that several
policies need.
"""

from __future__ import annotations

from typing import Any

from equipoise.experience.queue.queue import Queue
from equipoise.experience.replay.feed import Branch, ReplayFeed
from equipoise.experience.replay.plan import ReplayPlan
from equipoise.types import Array, Batch, Slot

POLICY = "main"


class Alone(Queue):
    """Its slot and its batch are those of the policy."""

    def reserve(self, streams: Array) -> Slot | None:  # type: ignore[override]
        slots = super().reserve(streams)
        return None if slots is None else slots[POLICY]

    def commit(self, slot: Slot) -> None:  # type: ignore[override]
        super().commit({POLICY: slot})

    def restart(self, slot: Slot) -> None:  # type: ignore[override]
        super().restart({POLICY: slot})

    def sample(self, n: int) -> Batch | None:
        keys = self.take()
        if keys is None:
            return None
        assert len(keys) == n
        return self.batches(keys)[POLICY]

    def learned(self, keys: Array, priority: Array | None) -> None:
        """Nothing: every item is learned from once."""


def rounds(plan: ReplayPlan, inbox: Any) -> ReplayFeed:
    """The rounds of the one policy that has this replay."""
    return ReplayFeed(inbox, begins=plan.begins, updates=plan.settings.updates)


def inbox_of(experience: Any) -> Any:
    """Where the actors write what this experience is fed."""
    return experience._rounds.inbox if isinstance(experience, Branch) else experience
