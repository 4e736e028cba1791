"""A successor of a learner that was killed: what it finds in the queue, and what it makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.experience.queue.queue import Plan
from equipoise.experience.queue.tokens import FREE, FULL, READ, LocalChannel
from equipoise.types import Batch, stream_ids
from tests.experience.alone import POLICY, Alone
from tests.experience.test_queue import ROW, Heap

ACTORS, BLOCK, UNROLL = 2, 2, 3
ROWS = ACTORS * BLOCK * UNROLL  # of a batch
LAGS = [0, 1, None]


class Line:
    """A queue of two actors whose learner may be replaced: each learner has an object of its own
    over one memory.
    """

    def __init__(self, max_lag: int | None) -> None:
        batch = ACTORS * BLOCK
        self.plan = Plan(
            rows={POLICY: ROW}, unroll=UNROLL, batch=batch, block=BLOCK, envs=batch, max_lag=max_lag
        )
        self.memory = Heap(self.plan.nbytes)
        self.free, self.full = [LocalChannel() for _ in range(self.plan.channels)], LocalChannel()
        self.driver = self.attach()
        self.driver.fill()
        self.learner = self.attach()
        self.marks = 0

    def attach(self) -> Alone:
        return Alone(self.plan, self.memory, free=self.free, full=self.full)

    def write(self) -> None:
        """A block of each actor, with marks that count on."""
        for actor in range(ACTORS):
            slot = self.driver.reserve(stream_ids(actor, BLOCK))
            assert slot is not None
            slot.data.reward[:] = self.marks
            self.marks += 1
            self.driver.commit(slot)

    def batch(self) -> Batch:
        batch = self.learner.sample(ACTORS * BLOCK)
        assert batch is not None
        return batch

    def killed(self, version: int, *, freed: bool) -> Any:
        """The learner is killed and replaced -> what its successor is to finish."""
        self.driver.orphaned()
        self.learner = self.attach()
        keys = self.learner.take_over(version, freed=freed)
        assert self.driver.reconcile()
        return keys

    def places(self, status: int) -> int:
        return int((self.driver._word % 4 == status).sum())


def marks(batch: Batch) -> list[int]:
    found: list[int] = batch.data.reward[0, ::BLOCK].int().tolist()
    return found


def check(line: Line) -> None:
    stats = line.driver.stats()
    assert stats["inserted"] == stats["sampled"] + stats["dropped"] + stats["held"]


def begun(max_lag: int | None) -> Line:
    """A queue whose learner has made version 1 and freed its batch; another batch is complete."""
    line = Line(max_lag)
    line.write()
    line.learner.finish(line.batch().keys)
    line.write()
    return line


@pytest.mark.parametrize("max_lag", LAGS)
def test_what_was_taken_after_a_freed_version_is_learned_from_again(max_lag: int | None) -> None:
    line = begun(max_lag)
    assert marks(line.batch()) == [2, 3]
    assert line.driver.stats()["sampled"] == 2 * ROWS
    assert line.killed(1, freed=True) is None
    assert line.driver.stats()["sampled"] == ROWS and line.driver.stats()["held"] == ROWS
    check(line)
    again = line.batch()
    assert marks(again) == [2, 3]
    line.learner.finish(again.keys)
    line.write()
    assert marks(line.batch()) == [4, 5]
    check(line)


@pytest.mark.parametrize("max_lag", LAGS)
def test_a_learner_that_was_killed_amid_a_take_took_nothing(max_lag: int | None) -> None:
    line = begun(max_lag)
    line.batch()
    place = int((line.driver._word % 4 == READ).argmax())
    line.driver._word[place] += FULL - READ  # one block is not marked yet, and no count was written
    line.driver._sampled[0] -= ACTORS
    assert line.killed(1, freed=True) is None
    assert sorted(marks(line.batch())) == [2, 3]
    check(line)


@pytest.mark.parametrize("max_lag", LAGS)
def test_the_batch_of_a_version_that_was_made_is_finished_by_the_successor(
    max_lag: int | None,
) -> None:
    line = begun(max_lag)
    batch = line.batch()
    keys = line.killed(2, freed=False)
    assert keys[:, 1].tolist() == sorted(batch.keys[:, 1].tolist())
    assert set(map(tuple, keys.tolist())) == set(map(tuple, batch.keys.tolist()))
    assert line.driver.stats()["sampled"] == 2 * ROWS
    line.learner.finish(keys)
    assert line.places(READ) == 0
    check(line)
    line.write()
    assert marks(line.batch()) == [4, 5]
    check(line)


@pytest.mark.parametrize("max_lag", LAGS)
@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_learner_that_was_killed_amid_freeing_leaves_the_rest(
    done: int, max_lag: int | None
) -> None:
    """The words of so many blocks were written, and no token was put."""
    line = begun(max_lag)
    batch = line.batch()
    sequences = batch.keys[::BLOCK, 1].tolist()
    line.driver._tokens._dealing[0] = 1
    for sequence in sequences[:done]:
        line.driver._word[sequence % line.plan.blocks] = (sequence + line.plan.blocks) * 4 + FREE
    keys = line.killed(2, freed=False)
    left = [] if keys is None else keys[::BLOCK, 1].tolist()
    assert left == sequences[done:]
    assert line.driver.stats()["sampled"] == 2 * ROWS
    if keys is not None:
        line.learner.finish(keys)
    check(line)
    for _ in range(2):
        line.write()  # every token is there once
        following = line.batch()
        assert sorted(marks(following)) == [line.marks - 2, line.marks - 1]
        line.learner.finish(following.keys)
    check(line)


def test_tokens_that_were_lost_amid_freeing_are_found_only_once_the_learner_is_known_to_be_dead() -> (  # noqa: E501
    None
):
    line = begun(1)
    sequences = line.batch().keys[::BLOCK, 1].tolist()
    line.driver._tokens._dealing[0] = 1
    for sequence in sequences:
        line.driver._word[sequence % line.plan.blocks] = (sequence + line.plan.blocks) * 4 + FREE
    line.driver.cancel(stream_ids(0, BLOCK))
    line.driver._tokens._searches = {0: None}
    assert not line.driver.reconcile(), "a living learner is about to put them"
    free = line.free[0].drain()
    line.free[0].put(free)
    assert not set(free) & {sequence + line.plan.blocks for sequence in sequences}
    line.driver.orphaned()
    assert line.driver.reconcile()
    free = line.free[0].drain()
    assert free == sorted(set(free)) and len(free) == line.places(FREE) == line.plan.blocks
