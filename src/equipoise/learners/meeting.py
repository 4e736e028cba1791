"""The meeting of several learners: none begins a step before all have a batch, and none frees a
batch before the leader.

The words, in memory that all learners and the driver map:

==========  =====================  ===========================================================
word        written by             when
==========  =====================  ===========================================================
ready[r]    learner r              the version that it can make next, once it has the batches
..          the driver, r dead     0
done[r]     learner r              1 + the version that it has made; 0: it never had one
freed[r]    learner r              the version whose batches it has freed
passed[r]   learner r              a version whose batches it may free: no cut holds it, and its machine has the version
life        the driver             counted up when a learner is verified dead
seen[r]     learner r              = ``life``, once it has stopped, and its other words with it
fresh[r]    the driver, r dead     1: the successor has no state yet
..          learner r              0, once it has one
address[r]  learner r              where gloo finds it, in this life: so many ``bytes[r]``
met[r]      learner r              1 + ``life``, once its address is valid in that life
==========  =====================  ===========================================================

The leader is learner 0: it publishes, records, and answers to the gate of the cuts.

**All learners make a version, or no learner does.** A learner that has made one waits for the
others (``agree``). Only then is the version published and recorded, and its batches freed. Until
then each learner keeps the state from before the step.

**A lost learner.** gloo raises an error in the others within milliseconds, and the driver counts
``life`` up. The other learners and the successor stop and write ``seen``. From then on their words
do not change, so all read the same: the last version of all is the smallest in ``done``. A learner
that is ahead loads the state from before the step. The successor loads the state of the first
learner that has one. Then they meet again and repeat the batch in flight, which is still in the
queue.
"""  # noqa: E501

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from equipoise.learners.pool import ALONE, Group, LearnerLost, Learners
from equipoise.publishing import publish
from equipoise.tree import ArraySpec
from equipoise.types import Array, Tree

ADDRESS = 512  # most bytes
LOOK_S = 0.0001  # how often a learner that waits for another looks
GIVE_UP_S = 600.0  # the driver finds a dead learner sooner
PULSE_S = 0.5  # seconds between its signs to the driver that it waits


class Meeting(Protocol):
    """One learner's way to the others."""

    @property
    def pool(self) -> Learners: ...
    @property
    def broken(self) -> bool: ...  # is a learner lost, so that ``rejoin`` is due?

    def begin(self, version: int) -> None:
        """Note that the learner begins with this version; a successor does not call this."""

    def step(self, version: int, work: Callable[[], object]) -> bool:
        """Do ``work``, which makes this version, with all learners -> False: call again."""

    def agree(self, version: int) -> None:
        """In ``work``: wait until all learners have made this version. May raise LearnerLost."""

    def held(self, version: int, gate: Callable[[int], bool]) -> bool:
        """Are the batches of this version, which is published, to be withheld still?

        The leader asks the ``gate``, the first learner of each machine asks the leader, and the
        other learners ask the first of their machine.
        """

    def freed(self, version: int) -> None:
        """Note that the batches of this version are freed."""

    def rejoin(self) -> int:
        """Wait until no learner is missing -> the version that all of them have made."""

    def hand_over(self, state: Callable[[], Tree]) -> Tree | None:
        """After ``rejoin``: send successors the state; return it in a successor."""

    # the version whose batches this learner, or the one before it, has freed
    @property
    def last_freed(self) -> int: ...


class Solo:
    """The meeting of a learner alone."""

    pool: Learners = ALONE
    broken = False
    last_freed = 0

    def begin(self, version: int) -> None: ...

    def step(self, version: int, work: Callable[[], object]) -> bool:
        work()
        return True

    def agree(self, version: int) -> None: ...

    def held(self, version: int, gate: Callable[[int], bool]) -> bool:
        return gate(version)

    def freed(self, version: int) -> None: ...

    def rejoin(self) -> int:
        raise RuntimeError("a single learner has no other learner to meet")

    def hand_over(self, state: Callable[[], Tree]) -> Tree | None:
        raise RuntimeError("a learner alone has no successor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A learner's place among the others."""

    rank: int
    size: int  # learners of the run
    first: int = 0  # the first learner of this machine, which publishes here
    address: str = "127.0.0.1"  # of this machine, for the others
    fresh: bool = False  # the successor of a learner that died


class SharedMeeting:
    """The meeting of several learners."""

    def __init__(
        self,
        words: Tree,
        seat: Seat,
        *,
        ring: Callable[[], object],
        pulse: Callable[[], object],
        at_once: Callable[[int, int, Callable[[], object]], bool] | None = None,
        dump: Callable[[Tree], bytes],
        parse: Callable[[bytes], Tree],
        summed: Callable[[float], object] = lambda seconds: None,
    ) -> None:
        """``words``: views of ``specs``. ``ring`` wakes the other learners, ``pulse`` shows the
        driver that this one lives.

        ``at_once`` runs the works of workers that take turns in one thread; None: each learner has
        a process of its own. ``summed`` is called with the seconds that the other learners kept a
        sum waiting. ``dump``, ``parse``: a state as bytes, and back.
        """
        # not every build of torch has what it needs
        from equipoise.learners.addresses import Addresses

        self._words, self._ring, self._pulse = words, ring, pulse
        self._rank, self._size, self._first = seat.rank, seat.size, seat.first
        self._at_once, self._dump, self._parse = at_once, dump, parse
        self._pulsed = time.monotonic()
        # after an earlier loss: join the others by ``rejoin``
        self._life, self._lost = (-1, True) if seat.fresh or words["life"][0] else (0, False)
        self.pool: Learners = Group(
            Addresses(words, self._wait_for),
            seat.rank,
            seat.size,
            look=self._look,
            summed=summed,
            address=seat.address,
        )

    @staticmethod
    def specs(size: int) -> Tree:
        names = ("ready", "done", "freed", "seen", "fresh", "bytes", "met", "passed")
        one = {"life": ArraySpec((1,), "int64"), "address": ArraySpec((size, ADDRESS), "uint8")}
        return dict.fromkeys(names, ArraySpec((size,), "int64")) | one

    @staticmethod
    def words_of(words: Tree, rank: int) -> list[Array]:
        """Views of a learner's words that other machines need, in the order of storing."""
        names = ("address", "bytes", "met", "fresh", "done", "freed", "ready", "passed", "seen")
        return [words[name][rank : rank + 1] for name in names]

    @property
    def broken(self) -> bool:
        return self._lost or bool(self._words["life"][0] != self._life)

    @property
    def last_freed(self) -> int:
        return int(self._words["freed"][self._rank])

    def begin(self, version: int) -> None:
        publish(self._words["done"], self._rank, version + 1)
        self.freed(version)

    def step(self, version: int, work: Callable[[], object]) -> bool:
        if self._at_once is not None:
            return self._at_once(self._rank, self._size, work)
        ready = self._words["ready"]
        if ready[self._rank] != version:
            publish(ready, self._rank, version)
            self._ring()  # the carrier of this word to another machine may sleep
        if (ready < version).any():
            return False
        try:
            work()
        except LearnerLost:
            self._lost = True
            return False
        return True

    def agree(self, version: int) -> None:
        done = self._words["done"]
        publish(done, self._rank, version + 1)
        if self._at_once is None:
            self._ring()  # the carrier of this word to another machine may sleep
            self._wait_for(lambda: bool((done > version).all()))

    def held(self, version: int, gate: Callable[[int], bool]) -> bool:
        passed = self._words["passed"]
        # An actor must not begin with a place that is free before its machine has the version.
        asked = 0 if self._rank == self._first else self._first
        if gate(version) if self._rank == 0 else passed[asked] < version:
            return True
        if passed[self._rank] < version:
            publish(passed, self._rank, version)
            if self._rank == self._first:
                self._ring()
        return False

    def freed(self, version: int) -> None:
        publish(self._words["freed"], self._rank, version)

    def rejoin(self) -> int:
        words, give_up = self._words, time.monotonic() + GIVE_UP_S
        self.pool.leave()
        while True:
            life = int(words["life"][0])
            if life == self._life:  # gloo reported it before the driver does
                if time.monotonic() > give_up:
                    raise RuntimeError(
                        f"expected that the driver finds a dead learner within {GIVE_UP_S:.0f} s, "
                        "got none"
                    )
                self._pulse()
                time.sleep(LOOK_S)
                continue
            self._life, self._lost = life, False
            publish(words["seen"], self._rank, life)
            try:
                self._wait_for(lambda: bool((words["seen"] == self._life).all()))
            except LearnerLost:
                continue
            made = words["done"]
            version = int(made[made > 0].min()) - 1
            publish(made, self._rank, version + 1)
            return version

    def hand_over(self, state: Callable[[], Tree]) -> Tree | None:
        fresh = self._words["fresh"].copy()
        self.pool.sum(torch.zeros(1))  # all have looked
        if not fresh.any():
            return None
        source = int((fresh == 0).argmax())
        data = bytearray(self._dump(state()) if self._rank == source else b"")
        size = self.pool.max(torch.tensor(len(data)))
        sent = torch.zeros(int(size), dtype=torch.uint8)
        sent[: len(data)] = torch.frombuffer(data, dtype=torch.uint8) if data else 0
        sent = self.pool.max(sent)  # of zeros and the state
        if not fresh[self._rank]:
            return None
        publish(self._words["fresh"], self._rank, 0)
        return self._parse(sent.numpy().tobytes())

    def _wait_for(self, there: Callable[[], bool]) -> None:
        """Wait until ``there()``; ``LearnerLost`` if a learner is lost meanwhile."""
        while not there():
            self._look()
            time.sleep(LOOK_S)

    def _look(self) -> None:
        """Report to the driver now and then; ``LearnerLost`` if a learner is lost."""
        if self._words["life"][0] != self._life:
            raise LearnerLost("another learner is lost")
        if time.monotonic() - self._pulsed > PULSE_S:
            self._pulsed = time.monotonic()
            self._pulse()
