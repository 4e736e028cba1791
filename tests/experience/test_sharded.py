"""Shards: what holds of a replay holds of several stores; the draw is that of one store; what is
lost with a shard.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.experience.replay.selectors import importance_weights
from equipoise.types import ReplaySettings as Settings
from equipoise.types import Tick
from tests.experience.history import History
from tests.experience.shards import SHARDS, Shards
from tests.experience.test_replay import (
    ACTORS,
    BLOCK,
    ROUND,
    STACKS,
    UNROLL,
    WINDOWS,
    Writers,
    drive,
)
from tests.saved import Kept

CASES = [
    ("uniform", "transition", 0, "black"),
    ("uniform", "5-step", None, "vectors"),
    ("uniform", "sequence", 1, "repeated"),
    ("prioritized", "transition", None, "repeated"),
    ("prioritized", "5-step", 0, "vectors"),
    ("prioritized", "sequence", 1, "black"),
]


def settings(**given: Any) -> Settings:
    return Settings(
        **{"capacity": ROUND * 6, "starts_at": ROUND * 2, "updates": 2, "shards": SHARDS} | given
    )


def history(**options: Any) -> History:
    return History(streams=BLOCK * ACTORS, rows=1200, **options)


def balanced(made: Shards) -> bool:
    """Is every row that came out of the inbox accounted for?"""
    found = made.replay.stats()
    return found["sampled"] == found["kept"] + found["overwritten"] + found["lost"]


def write(writers: Writers) -> None:
    assert all(writers.write(actor) for actor in range(ACTORS))


# -------------------------------------------------------------------------------------- conformance


@pytest.mark.parametrize(("selector", "window", "max_lag", "stack"), CASES)
def test_every_window_is_what_was_written(
    selector: Any, window: str, max_lag: int | None, stack: str
) -> None:
    past = history(stack=STACKS[stack], recurrent=window == "sequence")
    made = Shards(
        past, settings(selector=selector), batch=7, window=WINDOWS[window], max_lag=max_lag
    )
    assert drive(past, made.replay, batches=50, n=7)
    assert balanced(made) and made.replay.stats()["overwritten"] > 0
    assert sorted({shard.store.ring.streams for shard in made.shards}) == [BLOCK]


@pytest.mark.parametrize("stack", ["vectors", "black"])
def test_a_gap_is_never_crossed(stack: str) -> None:
    past = history(stack=STACKS[stack])
    made = Shards(past, settings(), batch=16, window=3)
    assert drive(past, made.replay, batches=50, n=16, gaps=True)


def test_shards_of_unequal_size_keep_the_rows_of_whole_actors() -> None:
    past = history()
    made = Shards(past, settings(shards=2), batch=16, window=2, max_lag=1)
    assert drive(past, made.replay, batches=30, n=16)
    assert [shard.store.ring.streams for shard in made.shards] == [2 * BLOCK, BLOCK]
    for shard, actors in zip(made.shards, [(0, 2), (1,)]):
        held = shard.store.windows(np.flatnonzero(shard.store.selector.state()["in"]))
        assert set(held.context["stream"].numpy() // BLOCK) == set(actors)


def test_samples_per_insert_are_exact() -> None:
    past = history()
    made = Shards(past, settings(starts_at=2 * ROUND + 1, updates=3), batch=5, max_lag=1).replay
    writers, updates = Writers(past, made), 0
    for _ in range(12):
        while sum(writers.write(actor) for actor in range(ACTORS)):
            pass
        if (batch := made.sample(5)) is not None:
            updates += 1
            made.finish(batch.keys)
    assert made.stats()["sampled"] / ROUND == 3 - 1 + -(-updates // 3)


# ----------------------------------------------------------------------------------------- the draw


@pytest.mark.parametrize("selector", ["uniform", "prioritized"])
def test_items_are_drawn_as_from_one_store(selector: Any) -> None:
    """A chi-square of 20,000 draws against p^alpha over the sum of all shards, whose masses differ;
    and the weights.
    """
    past = history()
    given = settings(selector=selector, updates=10**6, starts_at=ROUND * 4, alpha=0.7, beta=0.5)
    made = Shards(past, given, batch=200)
    writers = Writers(past, made.replay)
    for _ in range(3):
        write(writers)
        assert made.replay.sample(200) is None
    write(writers)
    rng = np.random.default_rng(0)
    for _ in range(6):
        batch = made.replay.sample(200)
        assert batch is not None
        height = 1.0 + 9.0 * (batch.data.context["stream"].numpy() // BLOCK == 1)
        made.replay.learned(batch.keys, rng.random(200) * height)
        made.replay.finish(batch.keys)
    mass: dict[int, float] = {}
    for k, shard in enumerate(made.shards):
        state: Any = shard.store.selector.state()
        of = state["mass"] if selector == "prioritized" else state["in"].reshape(-1).astype(float)
        mass |= {int(place) * SHARDS + k: of[place] for place in np.flatnonzero(state["in"])}
    total = sum(mass.values())
    made.replay._answer()
    counts = dict.fromkeys(mass, 0)
    for _ in range(100):
        made.replay._ask(200)
        batch = made.replay._answer()
        assert batch is not None
        for key in batch.keys[:, 0].tolist():
            counts[key] += 1
        p = np.array([mass[key] / total for key in batch.keys[:, 0].tolist()])
        expected = importance_weights(p, 0.5) if selector == "prioritized" else np.ones(200)
        np.testing.assert_allclose(batch.weight, expected, rtol=1e-5)
    wanted = {key: 20_000 * m / total for key, m in mass.items()}
    enough = [key for key in wanted if wanted[key] >= 5]
    chi = sum((counts[key] - wanted[key]) ** 2 / wanted[key] for key in enough)
    assert len(enough) > 40 and abs(chi - len(enough)) < 4 * (2 * len(enough)) ** 0.5


def test_priorities_come_to_the_items_that_they_are_of() -> None:
    past = history()
    made, _ = filled(past, alpha=0.5, epsilon=0.25)
    batch = made.replay.sample(16)
    assert batch is not None
    places, first = np.unique(batch.keys[:, 0], return_index=True)
    priority = batch.keys[:, 0] * 2.0 + 1.0  # the same for an item that comes twice
    made.replay.learned(batch.keys, priority)
    assert len({place % SHARDS for place in places.tolist()}) == SHARDS
    for place, p in zip(places.tolist(), priority[first].tolist()):
        state: Any = made.shards[place % SHARDS].store.selector.state()
        assert state["mass"][place // SHARDS] == (p + 0.25) ** 0.5


def test_new_items_get_the_highest_priority_of_any_shard() -> None:
    past = history()
    made = Shards(
        past,
        settings(selector="prioritized", alpha=1.0, epsilon=0.0, starts_at=ROUND, updates=1),
        batch=8,
    )
    writers = Writers(past, made.replay)
    write(writers)
    batch = made.replay.sample(8)
    assert batch is not None
    priority = np.full(8, 0.5)
    priority[3] = 40.0  # of one item, and so of one shard
    made.replay.learned(batch.keys, priority)
    made.replay.finish(batch.keys)
    write(writers)
    made.replay.sample(8)
    for shard in made.shards:
        state: Any = shard.store.selector.state()
        assert 40.0 in set(state["mass"][UNROLL * BLOCK :].tolist())


@pytest.mark.parametrize("bad", [np.nan, -1.0, np.inf])
def test_a_wrong_priority_is_refused_before_it_is_asked_of_a_shard(bad: float) -> None:
    past = history()
    made = Shards(past, settings(selector="prioritized", starts_at=ROUND), batch=4)
    write(Writers(past, made.replay))
    batch = made.replay.sample(4)
    assert batch is not None
    with pytest.raises(ValueError, match="expected finite priorities"):
        made.replay.learned(batch.keys, np.array([1.0, bad, 1.0, 1.0]))


# ----------------------------------------------------------------------------------------- the loss


def filled(
    past: History, *, batch: int = 16, rounds: int = 4, **given: Any
) -> tuple[Shards, Writers]:
    made = Shards(
        past,
        settings(**{"starts_at": ROUND * rounds, "selector": "prioritized"} | given),
        batch=batch,
    )
    writers = Writers(past, made.replay)
    for _ in range(rounds - 1):
        write(writers)
        assert made.replay.sample(batch) is None
    write(writers)
    return made, writers


def streams(batch: Any) -> set[int]:
    return set((batch.data.context["stream"].numpy() // BLOCK).tolist())


def test_a_lost_shard_loses_its_rows_and_nothing_else() -> None:
    past = history()
    made, writers = filled(past, updates=4)
    before = made.replay.sample(16)
    assert before is not None and streams(before) == {0, 1, 2}
    keys = before.keys.copy()
    made.lose(1)
    made.replay.learned(before.keys, np.ones(16))
    made.replay.finish(before.keys)
    # the one that was asked for before, all answered: its rows were true
    drawn = made.replay.sample(16)
    assert drawn is not None
    past.prove(drawn)
    made.replay.finish(drawn.keys)
    stats = made.replay.stats()
    assert (
        stats["lost"] == ROUND * 4 // 3 and stats["kept"] == ROUND * 4 * 2 // 3 and balanced(made)
    )
    after = made.replay.sample(16)
    assert after is not None and streams(after) == {0, 2}
    p = np.array(
        [
            made.shards[k % SHARDS].store.selector.state()["mass"][k // SHARDS]
            for k in after.keys[:, 0]
        ]
    )
    np.testing.assert_allclose(after.weight, importance_weights(p, 0.4), rtol=1e-5)
    made.replay.learned(keys, np.full(16, 1e6))  # some of them are of rows that are lost
    for k, shard in enumerate(made.shards):
        state: Any = shard.store.selector.state()
        assert k != 1 or not state["in"].any()
    made.replay.finish(after.keys)
    last = made.replay.sample(16)
    assert last is not None
    made.replay.finish(last.keys)
    seen = set[int]()
    for _ in range(3):
        write(writers)
        for _ in range(4):
            batch = made.replay.sample(16)
            assert batch is not None
            past.prove(batch)
            seen |= streams(batch)
            made.replay.finish(batch.keys)
    assert seen == {0, 1, 2}, "the successor has rows by now"
    assert balanced(made) and made.replay.stats()["lost"] == stats["lost"]


def test_blocks_that_it_had_not_taken_are_its_successors() -> None:
    past = history()
    made, writers = filled(past, updates=1)
    batch = made.replay.sample(16)
    assert batch is not None
    made.replay.finish(batch.keys)
    made.held.add(1)
    write(writers)
    assert made.replay.sample(16) is None, "a block of the round is not taken"
    made.lose(1)
    assert made.shards[1].tick() is Tick.STARVED, (
        "what was asked of the dead one is not asked of it"
    )
    assert made.replay.sample(16) is None
    made.release(1)
    batch = made.replay.sample(16)
    assert batch is not None
    past.prove(batch)
    stats = made.replay.stats()
    assert (stats["lost"], stats["kept"]) == (
        ROUND * 4 // 3,
        ROUND * 5 * 2 // 3 + ROUND // 3,
    ) and balanced(made)


def test_a_batch_that_it_has_not_given_is_drawn_anew() -> None:
    past = history()
    made, _ = filled(past, updates=4)
    made.held.add(2)
    assert made.replay.sample(16) is None, "a block is missing"
    made.serve(2)
    assert made.replay.sample(16) is None, "its part of the batch is missing"
    made.lose(2)
    made.release(2)
    assert made.replay.sample(16) is None
    batch = made.replay.sample(16)
    assert batch is not None and streams(batch) == {0, 1}
    past.prove(batch)
    assert balanced(made)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("window", [1, UNROLL + 1])
def test_where_all_are_lost_the_learner_waits_for_the_next_rounds(window: int, late: bool) -> None:
    """Of shards that answer at once, or once nobody has anything else to do."""
    past = history()
    made = Shards(past, settings(starts_at=ROUND * 2, updates=3), batch=16, window=window)
    writers, updates = Writers(past, made.replay), 0
    made.held |= set(range(SHARDS)) if late else set()

    def update() -> bool:
        batch = made.replay.sample(16)
        for _ in range(5):
            if batch is not None or not late:
                break
            for k in range(SHARDS):
                made.serve(k)
            batch = made.replay.sample(16)
        if batch is not None:
            past.prove(batch)
            made.replay.finish(batch.keys)
        return batch is not None

    write(writers)
    assert not update()
    write(writers)
    updates += update()
    for k in range(SHARDS):
        made.lose(k)
    assert not update()
    waited = 0
    while updates < 3 * 4:
        write(writers)
        waited += 1
        while update():
            updates += 1
    # One round (two, where a window is longer than an unroll) pays for what the lost ones still
    # owed, and does not count.
    assert waited == 3 + -(-window // UNROLL) and made.replay._rounds.taken == 2 + 3
    assert balanced(made) and made.replay.stats()["lost"] == 2 * ROUND


@pytest.mark.parametrize("selector", ["uniform", "prioritized"])
@pytest.mark.parametrize("window", [1, UNROLL + 1])
def test_in_any_order_of_answers_and_deaths_batches_are_true_and_rows_accounted_for(
    selector: Any, window: int, seed: int
) -> None:
    """Shards answer one request at a time and die now and then, one of them or all."""
    turn = random.Random(seed)
    past = history()
    given = settings(selector=selector, updates=turn.choice([1, 2, 5]))
    made = Shards(past, given, batch=8, window=window, max_lag=turn.choice([0, 1, None]))
    writers, learning, updates = Writers(past, made.replay), None, 0
    made.held |= set(range(SHARDS))
    for _ in range(2000):
        what = turn.choices(["write", "answer", "learn", "die", "all die"], [30, 30, 36, 3, 1])[0]
        if what == "write" and max(writers.next) < 1100:
            writers.write(turn.randrange(ACTORS))
        elif what == "answer":
            made.shards[turn.randrange(SHARDS)].tick()
        elif what.endswith("die"):
            for k in range(SHARDS) if what == "all die" else [turn.randrange(SHARDS)]:
                made.lose(k)
        elif what == "learn" and learning is None:
            if (learning := made.replay.sample(8)) is not None:
                past.prove(learning)
        elif what == "learn" and learning is not None:
            made.replay.learned(learning.keys, np.ones(8))
            made.replay.finish(learning.keys)
            learning, updates = None, updates + 1
    for _ in range(2):  # what the dead had not taken is their successors'
        made.replay.settled()
        for k in range(SHARDS):
            made.serve(k)
    made.replay.settled()
    assert updates > 0 and made.replay.stats()["lost"] > 0 and balanced(made)


def test_a_successor_that_dies_before_anybody_asked_it() -> None:
    past = history()
    made, writers = filled(past, updates=1)
    batch = made.replay.sample(16)
    assert batch is not None
    made.replay.finish(batch.keys)
    made.lose(0)
    made.lose(0)
    write(writers)
    batch = made.replay.sample(16)
    assert batch is not None
    past.prove(batch)
    assert balanced(made) and made.replay.stats()["lost"] == ROUND * 4 // 3


# ---------------------------------------------------------------------------------------- the state


def test_what_is_saved_goes_on_to_the_same_batches(tmp_path: Path) -> None:
    past = history()
    given = settings(selector="prioritized", updates=2)
    made = Shards(past, given, batch=8, window=2, folder=tmp_path)
    writers = Writers(past, made.replay)

    def learn(one: Shards, by: Writers, rounds: int) -> list[Any]:
        seen = []
        for _ in range(rounds):
            write(by)
            for _ in range(2):
                if (batch := one.replay.sample(8)) is not None:
                    seen.append(
                        (
                            batch.keys.tobytes(),
                            batch.weight.numpy().tobytes(),
                            batch.data.reward.numpy().tobytes(),
                        )
                    )
                    one.replay.learned(batch.keys, np.abs(batch.data.reward[0].numpy()) + 0.1)
                    one.replay.finish(batch.keys)
        return seen

    learn(made, writers, 9)
    state, box, rows = made.replay.state(), made.inbox.state(), list[Any]()
    for shard in made.shards:
        late = shard.save(kept := Kept())
        late.wait(60.0)
        saved = late.poll()
        assert saved is not None and saved.error is None and saved.files == {"": {}}
        kept.rows = {name: read(tmp_path / f"shard_{len(rows)}", name) for name in saved.segments}
        rows.append(kept)
    box = {name: (np.array(x) if isinstance(x, np.ndarray) else x) for name, x in box.items()}
    other = Shards(past, given, batch=8, window=2, folder=tmp_path, saved=box)
    for shard, kept in zip(other.shards, rows, strict=True):
        shard.load(kept)
    other.replay.load(state)
    mine = Writers(past, other.replay)
    mine.next = list(writers.next)
    expected = learn(made, writers, 5)
    assert len(expected) == 10 and learn(other, mine, 5) == expected
    assert made.replay.stats() == other.replay.stats() and balanced(other)


def read(folder: Path, name: str) -> bytes:
    return (folder / name).read_bytes()


def test_a_batch_of_another_size_is_refused() -> None:
    made, _ = filled(history())
    with pytest.raises(
        ValueError, match="expected the batch of 16 items that these shards were planned for, got 8"
    ):
        made.replay.sample(8)


def test_every_row_has_one_place_among_all_shards() -> None:
    past = history()
    made, _ = filled(past, updates=10**6)
    seen: dict[int, tuple[int, int]] = {}
    for _ in itertools.repeat(None, 40):
        batch = made.replay.sample(16)
        assert batch is not None
        for (key, row), stream in zip(batch.keys.tolist(), batch.data.context["stream"].tolist()):
            assert seen.setdefault(key, (stream, row)) == (stream, row)
        made.replay.finish(batch.keys)
    assert len(set(seen.values())) == len(seen)
