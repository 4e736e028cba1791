"""Prompts that a learner issues for blocks: each block has its own, whoever dies, and in a queue
that is dealt anew.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from equipoise.experience.queue.queue import Plan
from equipoise.experience.queue.redeal import dealt_anew
from equipoise.experience.queue.tokens import FREE, LocalChannel
from equipoise.types import Array, stream_ids
from tests.experience.alone import POLICY, Alone
from tests.experience.test_queue import ROW, Heap

GROUPS, BLOCK = 4, 2  # blocks of a batch of all learners, and envs of a block
NEW = 100


def plan(max_lag: int | None, learners: int = 1) -> Plan:
    return Plan(
        rows={POLICY: replace(ROW, issues=2)},
        unroll=1,
        batch=GROUPS * BLOCK // learners,
        block=BLOCK,
        envs=GROUPS * BLOCK // learners,
        max_lag=max_lag,
        span=BLOCK,
        learners=learners,
    )


def queue(of: Plan) -> Alone:
    return Alone(
        of,
        Heap(of.nbytes),
        free=[LocalChannel() for _ in range(of.channels)],
        full=LocalChannel(),
    )


def written(one: Alone, actors: range) -> dict[int, list[int]]:
    """Let actors write a block each -> the prompts that were issued, by the block's sequence."""
    found = {}
    for actor in actors:
        slot = one.reserve(stream_ids(actor, BLOCK))
        assert slot is not None
        sequence = int(slot.keys[0, 1])
        found[sequence] = one.issued(sequence).tolist()
        slot.data.context["stream"][:] = stream_ids(actor, BLOCK)
        one.commit(slot)
    return found


def prompts(version: int) -> Array:
    """[GROUPS, 2], each once."""
    return NEW + (version * GROUPS + np.arange(GROUPS))[:, None] * 2 + np.arange(2)


def learned(one: Alone, version: int) -> Array:
    keys = one.take()
    assert keys is not None
    one.issue(keys, prompts(version))
    return keys


@pytest.mark.parametrize("max_lag", [0, 1, None])
def test_each_block_has_the_prompts_of_the_version_that_dealt_it(max_lag: int | None) -> None:
    one = queue(plan(max_lag))
    one.fill()
    ahead = one.plan.blocks // GROUPS
    for _ in range(ahead):
        assert set(map(tuple, written(one, range(GROUPS)).values())) == {(-1, -1)}
    for version in range(3):
        one.finish(learned(one, version))
        found = written(one, range(GROUPS))
        assert sorted(found) == [*range((ahead + version) * GROUPS, (ahead + version + 1) * GROUPS)]
        assert [found[sequence] for sequence in sorted(found)] == prompts(version).tolist()


def test_a_successor_issues_the_same_for_what_is_left_of_a_batch() -> None:
    one = queue(plan(0))
    one.fill()
    written(one, range(GROUPS))
    keys = learned(one, 0)
    one.finish(keys[:BLOCK])  # and is killed
    one.orphaned()
    left = one.take_over(1, freed=False)
    assert left is not None and len(left) == (GROUPS - 1) * BLOCK
    one.issue(left, prompts(0))
    one.finish(left)
    assert [*written(one, range(GROUPS)).values()] == prompts(0).tolist()


def test_a_saved_queue_has_its_prompts_and_a_block_that_dies_keeps_its_own() -> None:
    one = queue(plan(1))
    one.fill()
    written(one, range(GROUPS))
    written(one, range(GROUPS))
    one.finish(learned(one, 0))
    learned(one, 1)  # withheld
    other = queue(plan(1))
    other.load(copy.deepcopy(one.state()))
    streams = stream_ids(0, BLOCK)
    slot = other.reserve(streams)
    assert slot is not None
    was = other.issued(int(slot.keys[0, 1])).tolist()
    other.cancel(streams)
    found = written(other, range(GROUPS)) | written(other, range(GROUPS))
    assert [*found.values()] == [*prompts(0).tolist(), *prompts(1).tolist()]
    assert was == prompts(0)[0].tolist()


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 4)])
def test_prompts_of_unwritten_blocks_are_issued_again_once(before: int, after: int) -> None:
    old, new = plan(1, before), plan(1, after)
    queues = [queue(old) for _ in range(before)]
    states = list[Any]()
    for rank, one in enumerate(queues):
        one.fill()
        mine = range(rank, GROUPS, before)
        for _ in range(2):
            written(one, mine)
        keys = one.take()
        assert keys is not None
        one.issue(keys, prompts(0)[rank::before])
        one.finish(keys)
        written(one, mine[:1] if before == 1 else mine)
        states.append(copy.deepcopy(one.state()))
    unwritten = [
        state["issued"][place].tolist()
        for state in states
        for place, word in enumerate(state["word"])
        if word % 4 == FREE
    ]
    made, dropped = dealt_anew(states, old, new, after)
    free = [
        state["issued"][place].tolist()
        for state in made
        for place, word in enumerate(state["word"])
        if word % 4 == FREE
    ]
    assert len(free) == len(unwritten) + dropped
    again = [one for one in free if one != [0, 0]]
    assert len({tuple(one) for one in again}) == len(again)
    assert all(one in again for one in unwritten), "an issued prompt is lost"
    for state, one in zip(made, [queue(new) for _ in range(after)], strict=True):
        one.load(state)
