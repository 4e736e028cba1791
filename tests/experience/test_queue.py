"""The queue's law: order, bound, accounting, and no copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from equipoise.experience.layout import RowSpec
from equipoise.experience.queue.queue import Plan
from equipoise.experience.queue.tokens import FULL, LocalChannel, Tokens
from equipoise.publishing import publish
from equipoise.tree import ArraySpec
from equipoise.types import stream_ids
from tests.experience.alone import POLICY, Alone


class Heap:
    def __init__(self, size: int) -> None:
        self.buffer = np.zeros(size, np.uint8).data


ROW = RowSpec(
    obs={"image": ArraySpec((3,), "uint8"), "speed": ArraySpec((), "float32")},
    action=ArraySpec((), "int64"),
    behaviour={"logp": ArraySpec((), "float32")},
    state={"h": ArraySpec((2,), "float32")},
    context={"stream": ArraySpec((), "int64"), "start": ArraySpec((), "int64")},
)


def queue(
    *, actors: int = 2, block: int = 2, batch: int = 4, max_lag: int | None = 0, unroll: int = 3
) -> tuple[Alone, Plan]:
    plan = Plan(
        rows={POLICY: ROW},
        unroll=unroll,
        batch=batch,
        block=block,
        envs=actors * block,
        max_lag=max_lag,
    )
    made = Alone(
        plan,
        Heap(plan.nbytes),
        free=[LocalChannel() for _ in range(plan.channels)],
        full=LocalChannel(),
    )
    made.fill()
    return made, plan


def fill(slot: Any, value: int) -> None:
    slot.data.obs["image"][:] = value
    slot.data.reward[:] = value
    slot.data.context["start"][:] = value
    slot.data.state["h"][:] = value


def test_a_batch_comes_in_the_order_of_reservation_and_is_a_view() -> None:
    q, _ = queue(max_lag=1)
    slots: list[Any] = [q.reserve(stream_ids(a, 2)) for a in (0, 1)]
    assert None not in slots
    fill(slots[1], 11)
    q.commit(slots[1])
    assert q.sample(4) is None, "the first reserved is not complete"
    fill(slots[0], 10)
    q.commit(slots[0])
    batch = q.sample(4)
    assert batch is not None
    assert batch.data.reward[0].tolist() == [10, 10, 11, 11]
    assert batch.data.reward.is_contiguous() and batch.data.obs["image"].is_contiguous()
    assert batch.data.state["h"][:, 0].tolist() == [10, 10, 11, 11]
    slots[0].data.reward[0, 0] = 99
    assert batch.data.reward[0, 0] == 99, "no copy lies between the actor and the learner"


def test_the_batch_that_comes_next_is_known_once_it_is_complete_and_is_not_taken() -> None:
    q, _ = queue(max_lag=1)

    def written(value: int) -> None:
        for actor in (0, 1):
            slot = q.reserve(stream_ids(actor, 2))
            assert slot is not None and (actor == 0 or q.coming() is None), (
                "half of a batch is none"
            )
            fill(slot, value)
            q.commit(slot)

    written(10)
    before = q.stats()
    first: Any = q.coming()
    assert q.batches(first)[POLICY].data.reward.eq(10).all() and q.stats() == before
    again, taken = q.coming(), q.take()
    assert (
        again is not None
        and taken is not None
        and np.array_equal(first, again)
        and np.array_equal(first, taken)
    )
    assert q.coming() is None
    written(20)
    second: Any = q.coming()
    assert q.batches(second)[POLICY].data.reward.eq(20).all()
    q.finish(first)
    taken = q.take()
    assert taken is not None and np.array_equal(second, taken)


def test_without_a_bound_nobody_knows_what_comes_next() -> None:
    q, _ = queue(max_lag=None)
    for actor in (0, 1):
        slot = q.reserve(stream_ids(actor, 2))
        assert slot is not None
        q.commit(slot)
    assert q.coming() is None and q.take() is not None


@pytest.mark.parametrize("max_lag", [0, 1, 4])
def test_a_place_is_dealt_again_only_after_finish(max_lag: int) -> None:
    q, plan = queue(max_lag=max_lag)
    for _ in range(max_lag + 1):
        for actor in (0, 1):
            slot = q.reserve(stream_ids(actor, 2))
            assert slot is not None
            q.commit(slot)
    assert q.reserve(stream_ids(0, 2)) is None
    batch = q.sample(4)
    assert batch is not None
    assert q.reserve(stream_ids(0, 2)) is None, "a batch in use is not free"
    q.finish(batch.keys)
    assert q.reserve(stream_ids(0, 2)) is not None
    assert plan.blocks == 2 * (max_lag + 1)


@pytest.mark.parametrize("before", [True, False])
def test_an_actors_blocks_keep_their_order_whenever_they_are_committed(before: bool) -> None:
    """Two commits of one actor beside the learner's look at the announcements, the later one at the
    lower place.
    """
    late: list[Any] = []

    class Interrupted(LocalChannel):
        def drain(self) -> list[int]:
            drained = [] if before else super().drain()
            while late:
                q.commit(late.pop(0))
            return super().drain() if before else drained

    plan = Plan(rows={POLICY: ROW}, unroll=3, batch=2, block=2, envs=2, max_lag=None)
    free = LocalChannel()
    q = Alone(plan, Heap(plan.nbytes), free=[free], full=Interrupted())
    q.fill()
    free.put(free.drain()[::-1])
    slots: list[Any] = [q.reserve(stream_ids(0, 2)) for _ in range(2)]
    assert slots[0].keys[0, 0] > slots[1].keys[0, 0]
    for value, slot in enumerate(slots):
        fill(slot, value)
    late.extend(slots)
    seen = []
    for _ in range(4):
        if (batch := q.sample(2)) is not None:
            seen.append(int(batch.data.context["start"][0]))
            q.finish(batch.keys)
    assert seen == [0, 1]


def test_in_lockstep_slots_are_dealt_by_rule_not_by_who_came_first() -> None:
    q, _ = queue(actors=2, max_lag=0)
    late = q.reserve(stream_ids(1, 2))
    assert late is not None and late.keys[0, 0] == 2
    assert q.reserve(stream_ids(1, 2)) is None, "the other place is actor 0's"
    early = q.reserve(stream_ids(0, 2))
    assert early is not None and early.keys[0, 0] == 0


def test_without_a_bound_batches_come_in_the_order_of_completion() -> None:
    q, plan = queue(actors=3, max_lag=None)
    assert plan.blocks == 6
    slots: dict[int, Any] = {a: q.reserve(stream_ids(a, 2)) for a in (0, 1, 2)}
    for actor in (2, 0):
        fill(slots[actor], actor)
        q.commit(slots[actor])
    batch = q.sample(4)
    assert batch is not None
    assert batch.data.reward[0].tolist() == [2, 2, 0, 0]
    assert batch.data.obs["image"][-1, :, 0].tolist() == [2, 2, 0, 0]
    assert batch.data.context["start"].tolist() == [2, 2, 0, 0]
    q.finish(batch.keys)
    assert q.stats()["open"] == 1 * 3 * 2


@pytest.mark.parametrize("max_lag", [0, 2, None])
def test_inserted_is_sampled_and_dropped_and_held(max_lag: int | None, seed: int) -> None:
    rng = np.random.default_rng(seed)
    q, _ = queue(actors=3, batch=6, max_lag=max_lag)
    open_slots: dict[int, Any] = {}
    stats: dict[str, float] = {}
    for _ in range(2000):
        actor = int(rng.integers(3))
        match rng.integers(4):
            case 0 if (
                actor not in open_slots and (slot := q.reserve(stream_ids(actor, 2))) is not None
            ):
                open_slots[actor] = slot
            case 1 if actor in open_slots:
                q.commit(open_slots.pop(actor))
            case 2 if (batch := q.sample(6)) is not None:
                q.finish(batch.keys)
            case 3 if actor in open_slots and rng.random() < 0.1:
                open_slots.pop(actor)
                q.cancel(stream_ids(actor, 2))
        stats = q.stats()
        assert stats["inserted"] == stats["sampled"] + stats["dropped"] + stats["held"], (
            f"seed {seed}: {stats}"
        )
    assert stats["sampled"] > 0 and stats["dropped"] > 0


def test_a_cancelled_slot_is_dealt_again_in_its_place() -> None:
    q, _ = queue(max_lag=0)
    lost = q.reserve(stream_ids(0, 2))
    assert lost is not None
    q.cancel(stream_ids(0, 2))
    again = q.reserve(stream_ids(0, 2))
    assert again is not None and again.keys.tolist() == lost.keys.tolist()


def test_an_actor_that_looks_slowly_takes_no_block_of_a_sequence_that_is_over() -> None:
    blocks = 2
    views = {name: np.zeros(spec.shape, np.int64) for name, spec in Tokens.specs(blocks, 3).items()}
    tokens = Tokens(views, [LocalChannel()])
    tokens.free(range(blocks))
    assert tokens.take(0) == 0

    class Owners:  # noqa: PLW1641
        """The owners, which are read after the block of actor 0 has gone all the way round."""

        def __eq__(self, actor: object) -> Any:
            tokens.owner = views["owner"]
            publish(tokens.word, 0, FULL)
            tokens.free([blocks])
            assert [tokens.take(2), tokens.take(2)] == [1, blocks]
            tokens.hand_over(0, 1)
            return views["owner"] == actor

    looked: Any = Owners()
    tokens.owner = looked
    assert tokens.held(1) == [] and tokens.held(1) == [blocks]


def test_a_batch_that_could_deadlock_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of envs_per_actor=2, got 3"):
        queue(batch=3)


def test_an_actor_beyond_the_limit_reserves_nothing_until_it_is_lifted() -> None:
    q, _ = queue(actors=3, batch=2, max_lag=2)
    q.limit(2, None)
    assert q.reserve(stream_ids(2, 2)) is None
    assert q.reserve(stream_ids(1, 2)) is not None
    q.limit(3, None)
    assert q.reserve(stream_ids(2, 2)) is not None


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_limit_below_the_law_bounds_how_far_actors_are_ahead(lag: int) -> None:
    q, plan = queue(actors=2, batch=4, max_lag=4)
    q.limit(2, lag)
    for _ in range(5):
        taken = 0
        while (slot := q.reserve(stream_ids(taken % 2, 2))) is not None:
            q.commit(slot)
            taken += 1
        # at first, and after each batch
        assert taken in (plan.per_batch * (lag + 1), plan.per_batch)
        batch = q.sample(4)
        assert batch is not None, "the oldest blocks are never withheld"
        assert q.reserve(stream_ids(0, 2)) is None, "a batch in use is ahead, too"
        q.finish(batch.keys)


def test_the_oldest_block_may_be_taken_though_younger_ones_fill_the_limit() -> None:
    """An actor died with the oldest; the others were one ahead of it."""
    q, plan = queue(actors=2, batch=4, max_lag=2)
    q.limit(2, 0)
    assert q.reserve(stream_ids(0, 2)) is not None
    younger = q.reserve(stream_ids(1, 2))
    assert younger is not None
    q.commit(younger)
    q.cancel(stream_ids(0, 2))
    q.limit(2, 0)
    oldest = q.reserve(stream_ids(1, 2))
    assert oldest is not None
    q.commit(oldest)
    assert q.sample(plan.batch) is not None


@pytest.mark.parametrize("actors", [0, 3])
def test_a_limit_that_no_queue_has_is_refused(actors: int) -> None:
    q, _ = queue(actors=2)
    with pytest.raises(ValueError, match=f"actors: expected 1 to 2, got {actors}"):
        q.limit(actors, None)
