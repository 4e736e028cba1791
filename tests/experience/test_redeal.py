"""Queues dealt anew to another number of learners: no row twice, none lost uncounted, none learned
from too late.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from equipoise.experience.queue.queue import Plan
from equipoise.experience.queue.redeal import dealt_anew
from equipoise.experience.queue.tokens import LocalChannel
from equipoise.types import Array
from tests.experience.alone import POLICY, Alone
from tests.experience.test_queue import ROW, Heap

ACTORS, BLOCK, UNROLL = 4, 2, 3
ROWS = BLOCK * UNROLL  # of a block
CHANGES = [(2, 1), (2, 4), (1, 2), (4, 2)]


class Queues:
    """The queues of so many learners, each with the actors that write there: actor a writes for
    learner a % learners.
    """

    def __init__(self, learners: int, max_lag: int | None, *, fill: bool = True) -> None:
        self.learners, self.max_lag = learners, max_lag
        self.plan = Plan(
            rows={POLICY: ROW},
            unroll=UNROLL,
            batch=ACTORS * BLOCK // learners,
            block=BLOCK,
            envs=ACTORS * BLOCK // learners,
            max_lag=max_lag,
            span=BLOCK,
            learners=learners,
        )
        self.queues = [
            Alone(
                self.plan,
                Heap(self.plan.nbytes),
                free=[LocalChannel() for _ in range(self.plan.channels)],
                full=LocalChannel(),
            )
            for _ in range(learners)
        ]
        for queue in self.queues if fill else ():
            queue.fill()

    def streams(self, actor: int) -> Array:
        return np.arange(actor * BLOCK, (actor + 1) * BLOCK)

    def write(self, actor: int, mark: int) -> bool:
        """A block of this actor, whose rows are told by the mark -> False: none is free."""
        queue = self.queues[actor % self.learners]
        slot = queue.reserve(self.streams(actor))
        if slot is None:
            return False
        slot.data.reward[:] = mark
        slot.data.context["stream"][:] = self.streams(actor)
        queue.commit(slot)
        return True

    def learn(self, learner: int) -> list[int] | None:
        """The marks of one learner's next batch."""
        queue = self.queues[learner]
        taken = queue.sample(self.plan.batch)
        if taken is None:
            return None
        marks: list[int] = taken.data.reward[0, ::BLOCK].int().tolist()
        assert taken.data.reward.eq(taken.data.reward[0]).all(), "a block's rows stay together"
        actors = taken.data.context["stream"][::BLOCK] // BLOCK
        assert actors.tolist() == [mark // 1000 for mark in marks] and bool(
            (actors % self.learners == learner).all()
        )
        queue.finish(taken.keys)
        return marks

    def states(self) -> list[Any]:
        return [copy.deepcopy(queue.state()) for queue in self.queues]

    def counts(self) -> dict[str, int]:
        stats = [queue.stats() for queue in self.queues]
        return {
            name: int(sum(one[name] for one in stats))
            for name in ("inserted", "sampled", "dropped", "held")
        }


def anew(before: Queues, after: int) -> tuple[Queues, int]:
    """The same run with so many learners -> its queues, and the blocks that were dropped."""
    made = Queues(after, before.max_lag, fill=False)
    states, dropped = dealt_anew(before.states(), before.plan, made.plan, after)
    assert len(states) == after
    for queue, state in zip(made.queues, states, strict=True):
        queue.load(state)
    return made, dropped


def filled(
    learners: int, max_lag: int | None, rng: np.random.Generator
) -> tuple[Queues, dict[int, int], int]:
    """Queues amid a run -> them; the marks that wait, each with the last version for it; and the
    version.
    """
    queues, version = Queues(learners, max_lag), 0
    number = [0] * ACTORS
    waiting: dict[int, int] = {}

    def write(actor: int) -> bool:
        mark = actor * 1000 + number[actor]
        mine = sum(mark // 1000 % learners == actor % learners for mark in waiting)
        if not queues.write(actor, mark):
            return False
        waiting[mark] = version + mine // queues.plan.per_batch
        number[actor] += 1
        return True

    for _ in range(int(rng.integers(1, 4))):
        for learner in range(learners):
            mine = [actor for actor in range(ACTORS) if actor % learners == learner]
            while (marks := queues.learn(learner)) is None:
                wrote = [write(actor) for actor in rng.permutation(mine).tolist()]
                assert any(wrote), "nobody can go on"
            for mark in marks:
                waiting.pop(mark)
        version += 1
    for actor in rng.integers(0, ACTORS, int(rng.integers(0, 20))).tolist():
        if max_lag != 0:  # where all stand still, lockstep holds no block
            write(actor)
    return queues, waiting, version


@pytest.mark.parametrize("max_lag", [0, 1, 3, None])
@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_every_block_is_learned_from_once_or_counted_as_dropped(
    before: int, after: int, max_lag: int | None, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    drops = 0
    for _ in range(40):
        old, waiting, version = filled(before, max_lag, rng)
        was = old.counts()
        old.queues[-1]._dropped[0] += 2  # blocks of actors that died
        old.queues[0]._restarted[0] += 1
        new, dropped = anew(old, after)
        drops += dropped
        now = new.counts()
        assert now["sampled"] == was["sampled"] and now["held"] == was["held"] - dropped * ROWS
        assert now["dropped"] == was["dropped"] + (3 + dropped) * ROWS
        assert (
            now["inserted"]
            == now["sampled"] + now["dropped"] + now["held"]
            == was["inserted"] + 3 * ROWS
        )
        learned = going_on(new, version, waiting)
        assert len(learned) == len(set(learned)) == len(waiting) - dropped
        for actor in range(ACTORS):
            own = [mark for mark in learned if mark // 1000 == actor]
            assert own == sorted(own), "an actor's blocks in their order"
    assert bool(drops) == (max_lag != 0 and after > before), (
        "a learner of more may have had too many of one actor"
    )


def going_on(queues: Queues, version: int, waiting: dict[int, int]) -> list[int]:
    """Actors write and learners learn until all that waited is learned -> the marks of that, in
    order for each learner.
    """
    found = []
    for learner in range(queues.learners):
        mine = [actor for actor in range(ACTORS) if actor % queues.learners == learner]
        for at in range(version, version + 8):
            tries = 0
            while (marks := queues.learn(learner)) is None:
                wrote = [queues.write(actor, actor * 1000 + 999) for actor in mine]
                tries += 1
                assert any(wrote) and tries < 20, "nobody can go on"
            for mark in marks:
                if mark % 1000 != 999:
                    found.append(mark)
                    assert queues.max_lag is None or at <= waiting[mark], (
                        "later than the law allows"
                    )
    return found


def held(learners: int, max_lag: int | None, actors: list[int]) -> Queues:
    """Queues before version 0 with a block of each of these actors, in this order."""
    queues = Queues(learners, max_lag)
    for number, actor in enumerate(actors):
        assert queues.write(actor, actor * 1000 + number)
    return queues


@pytest.mark.parametrize(
    ("before", "after", "max_lag", "actors", "dropped"),
    [
        # of actor 0 are four of version 0, which has room for two of them now
        (1, 2, 1, [0, 0, 0, 0, 1, 1, 1, 1], 2),
        (1, 2, 1, [0, 1, 2, 3, 0, 1, 2, 3], 0),
        # three of each version for one learner, which takes two
        (1, 2, 1, [0, 0, 0, 1, 2, 2, 2, 1], 2),
        # what is late in version 0 makes room for those of version 1
        (1, 2, 1, [1, 1, 1, 1, 1, 1], 2),
        (1, 2, None, [0, 0, 0, 0, 0, 0, 0, 0], 4),
        (1, 2, None, [0, 1, 0, 1, 2, 3, 2, 3], 0),
        # learner 0 had 0 0 | 2 2, and takes one of actor 0 a version now
        (2, 4, 1, [0, 0, 2, 2, 1, 3, 1, 3], 1),
        (2, 1, 1, [0, 0, 0, 0, 1, 1, 1, 1], 0),
        (4, 2, 3, [0, 0, 0, 0, 2, 2, 2, 2], 0),
    ],
)
def test_what_is_dropped_is_exact(
    before: int, after: int, max_lag: int | None, actors: list[int], dropped: int
) -> None:
    old = held(before, max_lag, actors)
    new, count = anew(old, after)
    assert count == dropped
    assert new.counts() == {
        "inserted": len(actors) * ROWS,
        "sampled": 0,
        "dropped": dropped * ROWS,
        "held": (len(actors) - dropped) * ROWS,
    }


def test_a_queue_that_has_no_room_left_drops_the_last() -> None:
    """Eight complete blocks of one actor without a bound: its learner has two places now."""
    old = held(1, None, [0] * 8)
    new, dropped = anew(old, 4)
    assert (new.plan.blocks, dropped) == (2, 6)
    assert [new.learn(0), new.learn(0), new.learn(0)] == [[0], [1], None]


def test_without_a_bound_the_blocks_are_dealt_in_the_order_of_completion() -> None:
    old = held(2, None, [2, 1, 0, 3, 2])
    new, dropped = anew(old, 1)
    assert dropped == 0
    first = new.learn(0)
    assert first is not None
    assert [mark for mark in first if mark // 1000 % 2 == 0] == [2000, 2], (
        "those of the first queue"
    )
    assert new.counts()["held"] == ROWS
