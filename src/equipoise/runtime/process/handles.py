"""Handles of the process runtime: each implements the Protocol that it stands for, and rings the
workers that may now go on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from equipoise.experience.queue.outbound import Outbound
from equipoise.experience.queue.queue import Queue
from equipoise.experience.queue.waiting import Waiting
from equipoise.plans.blueprint import Blueprint
from equipoise.runtime.ipc import Bell, Event
from equipoise.types import Array, Batch, Slot, Trajectory, Tree
from equipoise.workers.kind import LearningKind, Member, StandsIn, written


class SharedQueue:
    """The queue, as its workers see it."""

    def __init__(self, queue: Queue, *, actors: Sequence[Bell], learners: Sequence[Bell]) -> None:
        """``actors``: the workers that write rows, under central inference its workers."""
        self._queue, self._actors, self._learners = queue, actors, learners

    def reserve(self, streams: Array) -> Mapping[str, Slot] | None:
        return self._queue.reserve(streams)

    def commit(self, slots: Mapping[str, Slot]) -> None:
        self._queue.commit(slots)
        for bell in self._learners:
            bell.ring()

    def restart(self, slots: Mapping[str, Slot]) -> None:
        self._queue.restart(slots)

    def hand_over(self, slots: Mapping[str, Slot], streams: Array) -> None:
        self._queue.hand_over(slots, streams)
        self._ring_actors()

    def handed(self, streams: Array, known: Collection[int]) -> list[Mapping[str, Slot]]:
        return self._queue.handed(streams, known)

    def issued(self, sequence: int) -> Array:
        return self._queue.issued(sequence)

    def issue(self, keys: Array, prompts: Array) -> None:
        self._queue.issue(keys, prompts)

    def cancel(self, streams: Array) -> None:
        self._queue.cancel(streams)
        self._ring_actors()

    def orphaned(self) -> None:
        self._queue.orphaned()

    def take_over(self, version: int, *, freed: bool) -> Array | None:
        return self._queue.take_over(version, freed=freed)

    def reconcile(self) -> bool:
        """The driver's, after every ``cancel`` until it returns True."""
        done = self._queue.reconcile()
        self._ring_actors()
        return done

    def take(self) -> Array | None:
        return self._queue.take()

    def batches(self, keys: Array) -> dict[str, Batch]:
        return self._queue.batches(keys)

    def places(self, keys: Array) -> list[int]:
        return self._queue.places(keys)

    def block(self, place: int) -> dict[str, Trajectory]:
        return self._queue.block(place)

    def finish(self, keys: Array) -> None:
        self._queue.finish(keys)
        self._ring_actors()

    def _ring_actors(self) -> None:
        for bell in self._actors:
            bell.ring()

    def stats(self) -> dict[str, float]:
        return self._queue.stats()

    def state(self) -> Tree:
        return self._queue.state()

    def load(self, state: Tree) -> None:
        self._queue.load(state)


class Queues:
    """The queues of the learners on one machine, as its workers see them.

    A queue rings the workers that may go on: its learner, or the workers that write for it.
    """

    def __init__(
        self,
        blue: Blueprint,
        members: Sequence[Member],
        bells: Mapping[str, Bell],
        queues: Mapping[int, Queue],
    ) -> None:
        """``bells``: of the workers on this machine, by title. ``queues``: by learner."""
        # False: the dead worker's slots in a queue may still be unknown
        self.certain = True
        self.by_learner = dict[int, SharedQueue]()
        here = [one for one in members if one.title in bells]
        for learner, queue in queues.items():
            mine = set(blue.groups_of(learner))
            self.by_learner[learner] = SharedQueue(
                queue,
                actors=[
                    bells[one.title]
                    for one in here
                    if isinstance(one.kind, StandsIn) or mine & written(blue, [one])
                ],
                learners=[
                    bells[one.title]
                    for one in here
                    if isinstance(one.kind, LearningKind) and one.index == learner
                ],
            )

    def reconcile(self) -> None:
        """Look for what dead workers held, until every queue is certain of it."""
        if not self.certain:
            # a list, so that no queue is skipped
            certain = [queue.reconcile() for queue in self.by_learner.values()]
            self.certain = all(certain)


class SiteSlots:
    """The slots of a machine without a queue, as its workers see them: the carrier of their rows is
    rung.
    """

    def __init__(self, outbound: Outbound, carrier: Event, waiting: Waiting | None = None) -> None:
        """``waiting``: complete blocks, for the shards of this machine."""
        self._outbound, self._carrier, self._waiting = outbound, carrier, waiting

    def reserve(self, streams: Array) -> Mapping[str, Slot] | None:
        slots = self._outbound.reserve(streams)
        if slots is None:  # it is asked for, or was already
            self._carrier.set()
        return slots

    def commit(self, slots: Mapping[str, Slot]) -> None:
        self._outbound.commit(slots)
        self._carrier.set()

    def restart(self, slots: Mapping[str, Slot]) -> None:
        self._outbound.restart(slots)

    def issued(self, sequence: int) -> Array:
        return self._outbound.issued(sequence)

    def cancel(self, streams: Array) -> None:
        self._outbound.cancel(streams)
        self._carrier.set()

    def block(self, place: int) -> Mapping[str, Trajectory]:
        assert self._waiting is not None, "a machine without shards"
        return self._waiting.block(place)

    def orphaned(self) -> None:
        raise AssertionError("a machine without learners lost one")
