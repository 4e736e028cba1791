"""Where the learners of a run meet: nobody begins a step before all have a batch, and nobody frees a batch before the leader.

The words, in memory that all learners map:

==========  ===========  =====================================================================
word        written by   when
==========  ===========  =====================================================================
ready[r]    learner r    the version that it can make next, once it has the batches for that
passed      the leader   a version whose batches may be freed: it is recorded, and no cut holds it
size[r]     learner r    bytes of its address, after those
address[r]  learner r    where gloo finds it
==========  ===========  =====================================================================

The leader is learner 0: it publishes, records, and answers to the gate of the cuts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from equipoise.learners.pool import ALONE, Group, Learners
from equipoise.tree import ArraySpec
from equipoise.types import Tree

ADDRESS = 512  # bytes, at most


class Meeting(Protocol):
    """One learner's way to the others."""

    @property
    def pool(self) -> Learners: ...

    def step(self, version: int, work: Callable[[], object]) -> bool:
        """Do ``work``, which makes this version, together with all others -> False: not done yet, call again."""

    def held(self, version: int, gate: Callable[[int], bool]) -> bool:
        """Are the batches of this version to be withheld still? The leader asks the ``gate``, the others the leader."""


class Solo:
    """The meeting of a learner alone."""

    pool: Learners = ALONE

    def step(self, version: int, work: Callable[[], object]) -> bool:
        work()
        return True

    def held(self, version: int, gate: Callable[[int], bool]) -> bool:
        return gate(version)


class Together:
    """The meeting of several learners."""

    def __init__(
        self, words: Any, rank: int, size: int, *, ring: Callable[[], object], pulse: Callable[[], object],
        at_once: Callable[[int, int, Callable[[], object]], bool] | None = None,
    ) -> None:  # fmt: skip
        """``words``: views of ``specs``. ``ring`` wakes the other learners. ``at_once`` runs the works of workers that take
        turns in one thread; None: each learner has a process of its own.
        """
        self._words, self._rank, self._size, self._ring, self._at_once = words, rank, size, ring, at_once
        from equipoise.learners.addresses import Addresses  # not every build of torch has what it needs

        self.pool: Learners = Group(Addresses(words, pulse), rank, size, pulse=pulse)

    @staticmethod
    def specs(size: int) -> Tree:
        return {
            "ready": ArraySpec((size,), "int64"), "passed": ArraySpec((1,), "int64"),
            "size": ArraySpec((size,), "int64"), "address": ArraySpec((size, ADDRESS), "uint8"),
        }  # fmt: skip

    def step(self, version: int, work: Callable[[], object]) -> bool:
        ready = self._words["ready"]
        if self._at_once is not None:
            return self._at_once(self._rank, self._size, work)
        ready[self._rank] = version
        if (ready < version).any():
            return False
        self._ring()
        work()
        return True

    def held(self, version: int, gate: Callable[[int], bool]) -> bool:
        passed = self._words["passed"]
        if self._rank:
            return bool(passed[0] < version)
        if gate(version):
            return True
        if passed[0] < version:
            passed[0] = version
            self._ring()
        return False
