"""Prompts chosen by pass rate: how often, each once in a pass, and the same at all learners."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.learners.curriculum import UNSEEN, Curriculum, Issuing
from equipoise.learners.pool import ALONE
from equipoise.sources.prompts import Order
from equipoise.types import Array, Trajectory
from tests.learners.several import together

FACTS = Issuing(
    prompts=50,
    groups=8,
    samples=4,
    learners=1,
    dealt=16,
    refills=0,
    floor=0.1,
    decay=0.5,
    full=1.0,
    seed=5,
)
NOTHING = np.zeros(0, np.int64)


def made(**given: Any) -> Curriculum:
    facts = replace(FACTS, **given)
    return Curriculum(facts, Order(facts.prompts, 3))


def issued(one: Curriculum, versions: int) -> Array:
    """The prompts of the blocks that these versions deal, by the number of the block."""
    found = list[Array]()
    for _ in range(versions):
        one.learn(NOTHING, NOTHING)
        shares = [one.issued(rank) for rank in range(one._facts.learners)]
        found.append(np.stack(shares, 1).reshape(-1, shares[0].shape[1]))
    return np.concatenate(found)


def data(task: list[int], reward: list[list[float]], **context: Any) -> Trajectory:
    samples = len(reward[0])
    columns = len(task) * samples
    numbers: Any = {"task": torch.tensor(task).repeat_interleave(samples)}
    numbers |= {name: torch.tensor(x).repeat_interleave(samples, 0) for name, x in context.items()}
    nothing: Any = {}
    return Trajectory(
        obs=nothing,
        first=torch.zeros(2, columns, dtype=torch.bool),
        action=nothing,
        reward=torch.tensor(reward).reshape(1, -1),
        bootstrap=torch.ones(1, columns, dtype=torch.bool),
        mask=torch.ones(1, columns, dtype=torch.bool),
        behaviour=nothing,
        version=torch.zeros(1, columns, dtype=torch.int64),
        state=nothing,
        context=numbers,
    )


@pytest.mark.parametrize("seen", [False, True])
def test_unseen_prompts_and_a_floor_of_1_keep_the_plain_order(seen: bool) -> None:
    one = made(floor=1.0) if seen else made()
    if seen:
        one.rate[:] = np.linspace(0, 1, 50)
    plain = Order(50, 3).span(FACTS.dealt, 160, 0)
    assert (issued(one, 20)[:, 0] == plain).all()


def test_prompts_are_drawn_as_often_as_their_weights_and_once_in_a_pass() -> None:
    one = made(prompts=400, floor=0.2)
    rate = np.repeat(np.array([0.0, 0.5, 0.9, 1.0], np.float32), 100)
    one.rate[:] = rate
    passes, found = list[Array](), list[int]()
    while one._at[0] < 400 * 200:
        began = int(one._at[0]) // 400
        part = issued(one, 1)[:, 0].tolist()
        found += part
        if int(one._at[0]) // 400 != began:
            passes.append(np.array(found))
            found = []
    share = np.bincount(np.concatenate(passes), minlength=400).reshape(4, 100).mean(1) / 200
    assert share == pytest.approx([0.2, 1.0, 0.2 + 0.8 * 0.36, 0.2], abs=0.02)
    counts = [np.bincount(part, minlength=400) for part in passes[5:50]]
    # the batch in which a pass ends has prompts of the next
    assert max(int(count.max()) for count in counts) <= 2
    assert np.mean([(count > 1).mean() for count in counts]) < 0.05
    assert (np.bincount(np.concatenate(passes), minlength=400) > 0).all(), "none is forgotten"


def test_the_pass_rate_is_a_mean_of_groups_whose_rewards_say_something() -> None:
    one = made(groups=5, full=2.0)
    nan = float("nan")
    rewards = [[2.0, 2.0, 0, 0], [9.0, 9, 9, 9], [-1.0, -1, 0, 0], [nan, nan, nan, 1.0], [nan] * 4]
    batch = data([3, 4, 5, 6, 7], rewards)
    batch.mask[0, 4:8] = False  # lost
    prompts, passed = one.outcomes(batch, ALONE)
    assert prompts.tolist() == [3, 4, 5, 6, 7]
    assert passed.tolist() == [0.5, UNSEEN, 0.0, 0.5, UNSEEN]
    one.learn(prompts, passed)
    one.learn(np.array([3, 3, 4]), np.array([1.0, 0.5, 1.0], np.float32))
    assert one.rate[3:8].tolist() == [0.625, 1.0, 0.0, 0.5, UNSEEN]
    assert (one.rate[8:] == UNSEEN).all()


def test_a_dropped_group_counts_and_others_come_from_a_walk_of_their_own() -> None:
    one = made(groups=2, refills=2)
    nan = float("nan")
    batch = data(
        [3, 4],
        [[1.0, 0, 0, 0], [1.0, 1, 0, 0]],
        dropped=[[8, 9], [10, 0]],
        dropped_reward=[[0.0, 1.0], [nan, nan]],
    )
    prompts, passed = one.outcomes(batch, ALONE)
    assert prompts.tolist() == [3, 4, 8, 9, 10, 0]
    assert passed.tolist() == [0.25, 0.5, 0.0, 1.0, UNSEEN, UNSEEN]
    found = issued(one, 3)
    assert (found[:, 0] == Order(50, 3).span(FACTS.dealt, 6, 0)).all()
    assert (found[:, 1:].reshape(-1) == Order(50, 3).span(0, 12, 1)).all()
    shown = one.metrics(prompts, passed, ALONE)
    assert [float(x) for x in shown["curriculum/unseen"]] == [4.0, 4.0]
    one.learn(prompts, passed)
    assert [float(x) for x in one.metrics(prompts, passed, ALONE)["curriculum/settled"]] == [2, 4]


def played(learners: int, versions: int, one: Curriculum, rng: np.random.Generator) -> Array:
    found = list[Array]()
    for _ in range(versions):
        prompts = rng.integers(0, 50, 8 * learners)
        passed = rng.choice(np.array([0, 0.5, 1, -1], np.float32), 8 * learners)
        one.learn(prompts, passed)
        found.append(np.stack([one.issued(rank).copy() for rank in range(learners)]))
    return np.stack(found)


@pytest.mark.parametrize("learners", [1, 2])
def test_a_curriculum_that_goes_on_chooses_what_it_would_have_chosen(learners: int) -> None:
    whole = played(learners, 20, made(learners=learners, refills=1), np.random.default_rng(0))
    rng, one = np.random.default_rng(0), made(learners=learners, refills=1)
    first = played(learners, 7, one, rng)
    other = made(learners=learners, refills=1)
    other.load({name: x.copy() for name, x in one.state().items()})
    assert (other.issued(0) == one.issued(0)).all()
    rest = played(learners, 13, other, rng)
    assert (np.concatenate([first, rest]) == whole).all()
    assert len(np.unique(whole)) > 40
    with pytest.raises(ValueError, match=r"curriculum\.rate: expected .*\[49\]"):
        made(prompts=49).load(one.state())


def test_learners_see_the_groups_of_all_and_issue_one_walk() -> None:
    def work(rank: int, pool: Any) -> Any:
        one = made(groups=1, samples=2, learners=2)
        found = one.outcomes(data([10 + rank], [[float(rank), 1.0]]), pool)
        mine = one.metrics(*found, pool)["curriculum/pass_rate"]
        one.learn(*found)
        return found[0].tolist(), found[1].tolist(), float(mine[0]), one.issued(rank).tolist()

    one, other = together(2, work)
    assert one[:2] == other[:2] == ([10, 11], [0.5, 1.0])
    assert (one[2], other[2]) == (0.5, 1.0)
    walk = Order(50, 3).span(FACTS.dealt, 2, 0).tolist()
    assert [*one[3][0], *other[3][0]] == walk


def test_an_update_looks_at_few_of_ten_million_prompts() -> None:
    class Counted:
        seen = 0

        def span(self, first: int, count: int, series: int) -> Array:
            self.seen += count
            return (first + np.arange(count)) * 7919 % 10_000_000

    order = Counted()
    one = Curriculum(replace(FACTS, prompts=10_000_000, groups=64, floor=0.05), order)
    one.rate[:] = 0.0  # all fail
    one.learn(np.arange(64), np.full(64, 0.5, np.float32))
    assert 64 < order.seen < 20_000
    assert one.rate.nbytes == 40_000_000
