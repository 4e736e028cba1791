"""Replay: rows, masks and frames as they were written, through every wrap, gap and seam; the
limiter's law; what is refused.
"""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.experience.queue.queue import Plan
from equipoise.experience.queue.tokens import LocalChannel
from equipoise.experience.replay.plan import ReplayPlan
from equipoise.experience.replay.replay import Replay
from equipoise.types import ReplaySettings as Settings
from equipoise.types import Stack, stream_ids
from tests.experience.alone import POLICY, Alone, inbox_of, rounds
from tests.experience.history import FRAMES, History
from tests.experience.saving import members

UNROLL, BLOCK, ACTORS = 4, 2, 3
ROUND = UNROLL * BLOCK * ACTORS


class Heap:
    def __init__(self, size: int) -> None:
        self.buffer = np.zeros(size, np.uint8).data


def inbox(history: History, *, max_lag: int | None = 0, saved: Any = None) -> Alone:
    streams = BLOCK * ACTORS
    plan = Plan(
        rows={POLICY: history.row},
        unroll=UNROLL,
        batch=streams,
        block=BLOCK,
        envs=streams,
        max_lag=max_lag,
    )
    made = Alone(
        plan,
        Heap(plan.nbytes),
        free=[LocalChannel() for _ in range(plan.channels)],
        full=LocalChannel(),
    )
    made.fill() if saved is None else made.load(saved)
    return made


def replay(
    history: History,
    settings: Settings,
    *,
    window: int = 1,
    max_lag: int | None = 0,
    saved: Any = None,
    prefetch: bool = False,
    folder: Path | None = None,
    priority: Any = None,
) -> Replay:
    plan = ReplayPlan(
        settings=settings,
        row=history.row,
        stacks={} if history.stack is None else {"image": history.stack},
        unroll=UNROLL,
        window=window,
        block=BLOCK,
        actors=ACTORS,
        span=BLOCK,
        rounds=100,
    )
    box = inbox(history, max_lag=max_lag, saved=saved)
    return Replay(
        plan, rounds(plan, box), POLICY, seed=3, prefetch=prefetch, folder=folder, priority=priority
    )


class Writers:
    """Actors that write whenever there is room; ``skip`` leaves a gap in an actor's rows, as a
    successor does.
    """

    def __init__(self, history: History, experience: Any) -> None:
        self.history, self.inbox, self.next = history, inbox_of(experience), [0] * ACTORS

    def write(self, actor: int) -> bool:
        streams = stream_ids(actor, BLOCK)
        if (slot := self.inbox.reserve(streams)) is None:
            return False
        self.history.write(slot.data, streams, self.next[actor])
        self.next[actor] += UNROLL
        self.inbox.commit(slot)
        return True

    def skip(self, actor: int) -> None:
        """A row is lost: the streams go on after it, wherever in an episode they are."""
        self.next[actor] += 1


def drive(history: History, experience: Any, *, batches: int, n: int, gaps: bool = False) -> int:
    """Write and sample in turn, and prove every batch -> how many windows were proven."""
    writers, proven, rng = Writers(history, experience), 0, np.random.default_rng(1)
    for i in itertools.count():
        if gaps and i % 7 == 5:
            writers.skip(i % ACTORS)
        for actor in rng.permutation(ACTORS):
            writers.write(int(actor))
        while (batch := experience.sample(n)) is not None:
            if isinstance(experience, Alone) or batch.weight.all():
                history.prove(batch)
            assert isinstance(experience, Alone) or bool(batch.data.mask[0][batch.weight > 0].all())
            experience.learned(batch.keys, np.abs(batch.data.reward[0].numpy()) + 0.1)
            experience.finish(batch.keys)
            proven += n
            if proven >= batches * n:
                return proven
        assert i < 10_000
    raise AssertionError


STACKS = {
    "vectors": None,
    "black": Stack(frames=4, padding="zero"),
    "repeated": Stack(frames=4, padding="first"),
}


WINDOWS = {"transition": 1, "5-step": 5, "sequence": UNROLL}
ALL = list(
    itertools.product(["uniform", "prioritized", "fifo"], WINDOWS, ["memory", "mmap"], ["black"])
)
ALL += [
    ("uniform", window, "memory", stack) for window in WINDOWS for stack in ("vectors", "repeated")
]
ALL += [("queue", "sequence", "memory", stack) for stack in STACKS]
CODED = ["lz4", "zstd", "delta"]
ALL += [
    *itertools.product(["uniform"], WINDOWS, CODED, ["black", "maps"]),
    ("uniform", "5-step", "delta", "repeated"),
    ("prioritized", "sequence", "delta", "black"),
    ("fifo", "5-step", "delta", "maps"),
    ("prioritized", "transition", "memory", "maps"),
]


@pytest.mark.parametrize("max_lag", [0, 1, None])
@pytest.mark.parametrize(("selector", "window", "storage", "stack"), ALL)
def test_every_window_is_what_was_written(
    selector: Any, window: str, storage: str, stack: str, max_lag: int | None, tmp_path: Any
) -> None:
    """A sequence is of a recurrent policy: it begins where a state was stored."""
    recurrent = window == "sequence"
    history = History(
        streams=BLOCK * ACTORS,
        rows=400,
        stack=STACKS.get(stack),
        maps=stack == "maps",
        recurrent=recurrent,
    )
    if selector == "queue":
        assert drive(history, inbox(history, max_lag=max_lag), batches=20, n=BLOCK * ACTORS)
        return
    settings = Settings(
        capacity=ROUND * 6,
        starts_at=ROUND * 2,
        updates=2,
        selector=selector,
        file=str(tmp_path) if storage == "mmap" else "",
        codec=storage if storage in CODED else "",
    )
    made = replay(history, settings, window=WINDOWS[window], max_lag=max_lag)
    assert drive(history, made, batches=50, n=7 if selector != "fifo" else 2)
    assert not list(tmp_path.iterdir()), "the file has no name"


@pytest.mark.parametrize(
    ("selector", "codec"), [("uniform", ""), ("prioritized", ""), ("uniform", "delta")]
)
def test_a_prefetched_batch_keeps_its_keys_and_its_rows(selector: Any, codec: str) -> None:
    history = History(streams=BLOCK * ACTORS, rows=1200, stack=STACKS["black"])
    settings = Settings(
        capacity=ROUND * 6, starts_at=ROUND * 2, updates=5, selector=selector, codec=codec
    )
    made = replay(history, settings, window=3, max_lag=1, prefetch=True)
    assert drive(history, made, batches=101, n=7)
    for _ in range(3):  # of one round: each but the last is proven when the next was gathered
        batch = made.sample(7)
        assert batch is not None and isinstance(made._next, Future)
        assert not np.array_equal(made._next.result().keys, batch.keys)
        history.prove(batch)
        np.testing.assert_array_equal(batch.keys[:, 1], batch.data.context["start"].numpy())
        made.learned(batch.keys, np.ones(7))
        made.finish(batch.keys)


GAPPED = [
    *itertools.product(STACKS, [1, 3, 6], [""]),
    ("black", 3, "delta"),
    ("repeated", 6, "zstd"),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("stack", "window", "codec"), GAPPED)
def test_a_gap_is_never_crossed(stack: str, window: int, codec: str) -> None:
    """Not by rows, and not by the frames of a stack, though most gaps here are amid an episode."""
    history = History(streams=BLOCK * ACTORS, rows=1200, stack=STACKS[stack])
    made = replay(
        history,
        Settings(capacity=ROUND * 6, starts_at=ROUND * 2, updates=2, codec=codec),
        window=window,
    )
    assert drive(history, made, batches=100, n=16, gaps=True)


@pytest.mark.parametrize("stack", ["black", "repeated"])
def test_after_a_gap_rows_come_back_as_soon_as_their_frames_are_held(stack: str) -> None:
    """With its episode's next beginning, or once a whole stack of frames has come since: not
    before, and not later.
    """
    history, gap = (
        History(streams=BLOCK * ACTORS, rows=400, stack=STACKS[stack], longest=7),
        2 * UNROLL,
    )
    made = replay(history, Settings(capacity=ROUND * 20, starts_at=ROUND * 5, updates=1))
    writers = Writers(history, made)
    for i in range(5):
        if i == 2:
            for actor in range(ACTORS):
                writers.skip(actor)
        for actor in range(ACTORS):
            writers.write(actor)
        made.sample(1)
    data = made.ring.gather(places := members(made))
    made_of = zip(data.context["stream"].tolist(), data.context["start"].tolist(), strict=True)
    held = [
        (stream, row)
        for stream in range(BLOCK * ACTORS)
        for row in [*range(gap - 1), *range(gap + 1, 5 * UNROLL + 1)]
        if history.mask[row, stream]
        and (row < gap or min(history.age[row, stream], FRAMES - 1) <= row - gap - 1)
    ]
    assert sorted(made_of) == held and len(places) == len(made.selector)
    assert any(
        history.age[gap + 1, s] > 0 and history.mask[gap + 1, s] for s in range(BLOCK * ACTORS)
    ), "amid an episode"


def test_every_place_that_is_held_is_sampled_and_no_other() -> None:
    """Uniform over everything that begins with a real row: as many items as the last rows of the
    history allow.
    """
    history = History(streams=BLOCK * ACTORS, rows=1200)
    made = replay(history, Settings(capacity=ROUND * 5, starts_at=ROUND, updates=1), window=2)
    drive(history, made, batches=40, n=4)
    seen: set[tuple[int, int]] = set()
    rng = np.random.default_rng(0)
    for _ in range(200):
        places, probability = made.selector.sample(64, rng)
        data = made.ring.gather(places)
        seen |= set(
            zip(data.context["stream"].tolist(), data.context["start"].tolist(), strict=True)
        )
        assert np.allclose(probability, 1 / len(made.selector))
    newest = max(start for _, start in seen)
    held = {
        (stream, row)
        for stream in range(BLOCK * ACTORS)
        for row in range(newest - 5 * UNROLL + 2, newest + 1)
        if history.mask[row, stream]
    }
    assert seen == held and len(made.selector) == len(held)


def test_samples_per_insert_are_exact() -> None:
    history = History(streams=BLOCK * ACTORS, rows=1200)
    made = replay(
        history, Settings(capacity=ROUND * 6, starts_at=2 * ROUND + 1, updates=3), max_lag=1
    )
    writers, updates = Writers(history, made), list[int]()
    for _ in range(12):
        while sum(writers.write(actor) for actor in range(ACTORS)):
            pass
        assert max(writers.next) * BLOCK * ACTORS <= (max(len(updates) // 3, 0) + 2 + 2) * ROUND, (
            "actors are 2 rounds ahead"
        )
        if (batch := made.sample(5)) is not None:
            updates.append(max(writers.next))
            made.finish(batch.keys)
    rounds = made.stats()["sampled"] / ROUND
    assert rounds == 3 - 1 + -(-len(updates) // 3)
    assert (
        made.stats()["inserted"]
        == made.stats()["sampled"] + made.stats()["held"] + made.stats()["dropped"]
    )


@pytest.mark.parametrize("selector", ["uniform", "prioritized", "fifo"])
def test_there_is_nothing_to_sample_before_the_first_window_is_whole(selector: Any) -> None:
    """An unroll has 4 rows and a window 9; in lockstep a round that is held back would be the last
    one.
    """
    history = History(streams=BLOCK * ACTORS, rows=200)
    made = replay(
        history,
        Settings(capacity=ROUND * 9, starts_at=0, updates=1, selector=selector),
        window=2 * UNROLL + 1,
    )
    writers = Writers(history, made)
    for i in range(5):
        assert made.sample(3) is None
        assert all(writers.write(actor) for actor in range(ACTORS)), i
        if i == 2:
            break
    batch = made.sample(3)
    assert batch is not None and float(batch.weight.min()) > 0
    history.prove(batch)


@pytest.mark.parametrize("selector", ["uniform", "prioritized", "fifo"])
def test_rounds_that_nothing_can_begin_with_do_not_count(selector: Any) -> None:
    history = History(streams=BLOCK * ACTORS, rows=200)
    history.mask[: 2 * UNROLL] = False  # every env was reset, twice
    made = replay(
        history, Settings(capacity=ROUND * 9, starts_at=ROUND, updates=2, selector=selector)
    )
    writers, updates = Writers(history, made), 0
    for _ in range(5):
        assert all(writers.write(actor) for actor in range(ACTORS))
        while (batch := made.sample(3)) is not None:
            history.prove(batch)
            made.learned(batch.keys, np.ones(3))
            made.finish(batch.keys)
            updates += 1
    assert (made._rounds.taken, updates) == (3, 6)


def test_a_priority_for_a_row_that_is_gone_is_ignored() -> None:
    history = History(streams=BLOCK * ACTORS, rows=1200)
    made = replay(
        history,
        Settings(capacity=ROUND * 4, starts_at=ROUND, updates=1, selector="prioritized", alpha=1.0),
    )
    writers = Writers(history, made)
    for actor in range(ACTORS):
        writers.write(actor)
    old = made.sample(8)
    assert old is not None
    keys = old.keys.copy()
    made.learned(keys, np.full(8, 0.5))
    made.finish(keys)
    assert made.selector.sample(4, np.random.default_rng(0))[1].max() <= 1.0
    for _ in range(6):
        for actor in range(ACTORS):
            writers.write(actor)
        batch = made.sample(8)
        assert batch is not None
        made.finish(batch.keys)
    before = made.selector.sample(64, np.random.default_rng(0))
    made.learned(keys, np.full(8, 1e6))
    after = made.selector.sample(64, np.random.default_rng(0))
    np.testing.assert_array_equal(before[0], after[0])
    np.testing.assert_array_equal(before[1], after[1])


@pytest.mark.parametrize("bad", [np.nan, -1.0, np.inf])
def test_a_wrong_priority_is_refused_by_name(bad: float) -> None:
    history = History(streams=BLOCK * ACTORS, rows=200)
    made = replay(
        history, Settings(capacity=ROUND * 4, starts_at=ROUND, updates=1, selector="prioritized")
    )
    writers = Writers(history, made)
    for actor in range(ACTORS):
        writers.write(actor)
    batch = made.sample(4)
    assert batch is not None
    with pytest.raises(ValueError, match="priorit"):
        made.learned(batch.keys, np.array([1.0, bad, 1.0, 1.0]))


def test_importance_weights_follow_the_probabilities() -> None:
    history = History(streams=BLOCK * ACTORS, rows=400)
    made = replay(
        history,
        Settings(
            capacity=ROUND * 4,
            starts_at=ROUND,
            updates=4,
            selector="prioritized",
            beta=1.0,
            alpha=1.0,
        ),
    )
    writers = Writers(history, made)
    for actor in range(ACTORS):
        writers.write(actor)
    for priority in (0.5, 2.0, 7.0):
        batch = made.sample(6)
        assert batch is not None and batch.weight.dtype == torch.float32
        made.learned(batch.keys, np.linspace(priority, 2 * priority, 6))
        made.finish(batch.keys)
    batch = made.sample(50)
    assert batch is not None
    assert float(batch.weight.max()) == 1.0 and float(batch.weight.min()) < 0.5


def test_budgets_in_bytes() -> None:
    history = History(streams=BLOCK * ACTORS, rows=10, stack=STACKS["black"])
    budget = 3_000_000
    made = replay(history, Settings(memory=budget, starts_at=ROUND))
    held = sum(array.nbytes for array in (made.ring._records, *made.ring._large.values()))
    held += made.selector.nbytes
    assert 0.95 * budget <= held <= 1.05 * budget
    with pytest.raises(
        ValueError, match=r"replay\.memory: expected at least [\d,]+ bytes"
    ) as error:
        replay(history, Settings(memory=10_000, starts_at=ROUND))
    least = int(str(error.value).split("at least ")[1].split(" bytes")[0].replace(",", ""))
    replay(history, Settings(memory=least, starts_at=ROUND))
    with pytest.raises(ValueError, match="replay"):
        replay(history, Settings(memory=least - 1, starts_at=ROUND))


def test_a_stack_that_is_shown_again_is_refused() -> None:
    """As the row of a hold does, in SAME_STEP: kept once, its newest frame would be there twice."""
    history = History(streams=BLOCK * ACTORS, rows=100, stack=STACKS["black"])
    made = replay(history, Settings(capacity=600, starts_at=ROUND))
    row = int(np.flatnonzero(history.mask[:UNROLL, 0] & ~history.first[1 : UNROLL + 1, 0])[0])
    history.mask[row, 0] = False
    writers = Writers(history, made)
    assert all(writers.write(actor) for actor in range(ACTORS))
    with pytest.raises(
        ValueError, match="expected stacks of frames that shift by one a row, got rows that show"
    ):
        made.sample(4)


def test_a_capacity_that_could_deadlock_is_refused() -> None:
    history = History(streams=BLOCK * ACTORS, rows=10)
    with pytest.raises(ValueError, match=r"replay\.capacity: expected at least [\d,]+ rows"):
        replay(history, Settings(capacity=ROUND * 3, starts_at=ROUND * 10))
