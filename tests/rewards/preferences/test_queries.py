"""Choosing pairs, the synthetic teacher, and demonstrations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from equipoise.rewards.preferences.demonstrations import demonstration_answers
from equipoise.rewards.preferences.queries import (
    chosen_pairs,
    disagreement,
    information,
    newest,
    random_pairs,
)
from equipoise.rewards.preferences.teacher import Teacher, bayes_accuracy, expected_accuracy


def keys(pairs: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(pair) for pair in pairs.tolist()}


@pytest.mark.parametrize("total", [40, 2000])
def test_no_pair_comes_twice_and_a_seed_decides(total: int) -> None:
    side = np.arange(total) % 4 == 0
    first = random_pairs(20, side, seed=1)
    again = random_pairs(20, side, seed=1)
    assert np.array_equal(first, again) and len(keys(first)) == 20
    assert not np.array_equal(first, random_pairs(20, side, seed=2))
    assert (side[first[:, 0]] == side[first[:, 1]]).all() and (first[:, 0] != first[:, 1]).all()
    more = random_pairs(30, side, seed=1, asked=first[:, ::-1])
    assert not keys(first) & keys(more)


def test_all_pairs_are_found_and_then_no_more() -> None:
    side = np.zeros(7, np.bool_)
    pairs = random_pairs(100, side, seed=0)
    assert len(pairs) == len(keys(pairs)) == 21
    assert len(random_pairs(5, side, seed=0, asked=pairs)) == 0
    assert len(random_pairs(5, side[:1], seed=0)) == len(random_pairs(5, side[:0], seed=0)) == 0


def test_each_side_has_its_share_and_either_segment_may_be_left() -> None:
    side = np.arange(1000) < 150
    pairs = random_pairs(2000, side, seed=0)
    assert side[pairs[:, 0]].sum() == 300
    assert 0.45 < (pairs[:, 0] < pairs[:, 1]).mean() < 0.55


def test_pairs_of_the_newest_version_with_any_other() -> None:
    version = np.repeat([3, 5, 9], 10)
    assert newest(version).sum() == 10 and newest(version, versions=2).sum() == 20
    pairs = random_pairs(60, np.zeros(30, np.bool_), seed=0, left=newest(version))
    assert (version[pairs] == 9).any(1).all() and (version[pairs] != 9).any()
    against = random_pairs(
        60, np.zeros(30, np.bool_), seed=0, left=newest(version), right=version == 3
    )
    assert {tuple(sorted(one)) for one in version[against].tolist()} == {(3, 9)}


def test_the_highest_scores_are_chosen_and_held_out_pairs_are_not() -> None:
    side = np.arange(100) < 20

    def score(pairs: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(pairs.sum(1))

    asked = random_pairs(20, side, seed=4)
    pairs = chosen_pairs(50, side, score, seed=0, asked=asked)
    held = side[pairs[:, 0]]
    assert len(keys(pairs)) == 50 and held.sum() == 10 and not keys(pairs) & keys(asked)
    assert pairs[~held].sum(1).min() > 100 + 20  # the mean of random ones is about 119
    assert np.array_equal(pairs, chosen_pairs(50, side, score, seed=0, asked=asked))


def test_open_questions_are_those_that_members_answer_differently() -> None:
    agree, coin, differ = [0.9, 0.9], [0.5, 0.5], [0.1, 0.9]
    chance = torch.tensor([agree, coin, differ]).T
    assert disagreement(chance).tolist() == pytest.approx([0, 0, 0.4])
    wanted = math.log(2) + 0.1 * math.log(0.1) + 0.9 * math.log(0.9)
    assert information(chance).tolist() == pytest.approx([0, 0, wanted], abs=1e-6)


# ------------------------------------------------------------------------------------------ teacher


def test_a_teacher_weighs_late_rows_and_counts_no_padding() -> None:
    rewards, mask = np.array([[1.0, 2.0, 4.0], [1.0, 2.0, 9.0]]), np.ones((2, 3), np.bool_)
    mask[1, 2] = False
    found = Teacher(myopia=0.5, scale=2.0).returns(rewards, mask)
    assert found.tolist() == [(0.25 + 1 + 4) / 2, (0.5 + 2) / 2]
    assert Teacher(myopia=0.0).returns(rewards, mask).tolist() == [4.0, 2.0]


def test_answers_come_with_the_chances_of_the_teacher() -> None:
    left, right = np.full(20_000, 1.0), np.zeros(20_000)
    for teacher, wanted in [
        (Teacher(), 1.0),
        (Teacher(rationality=1.0), 1 / (1 + math.exp(-1))),
        (Teacher(error=0.2), 0.8),
        (Teacher(rationality=0.0, error=0.3), 0.5),
    ]:
        assert teacher.chance(left, right)[0] == pytest.approx(wanted)
        assert teacher.answer(left, right, seed=0).share.mean() == pytest.approx(wanted, abs=0.012)
    first, again = (Teacher(rationality=1.0).answer(left, right, seed=3) for _ in range(2))
    assert np.array_equal(first.share, again.share)


def test_ties_and_skips_have_thresholds() -> None:
    left, right = np.array([0.1, 2.0, -3.0]), np.array([0.0, 0.0, -1.0])
    found = Teacher(equal=0.5, skip=-0.5).answer(left, right, seed=0)
    assert found.share.tolist() == [0.5, 1.0, 0.0] and found.given.tolist() == [True, True, False]


def test_no_model_is_better_than_the_bayes_accuracy() -> None:
    chance = np.random.default_rng(0).random(1000)
    assert bayes_accuracy(np.array([0.9, 0.2, 0.5])) == pytest.approx((0.9 + 0.8 + 0.5) / 3)
    assert expected_accuracy(chance, chance) == pytest.approx(bayes_accuracy(chance))
    assert expected_accuracy(chance, 1 - chance) == pytest.approx(1 - bayes_accuracy(chance))


# ----------------------------------------------------------------------------------- demonstrations


def test_demonstrations_are_preferred_on_whichever_side_they_are() -> None:
    shown = np.arange(40) < 10
    early = np.arange(40) < 25
    answers = demonstration_answers(
        shown, np.zeros(40, np.bool_), count=60, seed=0, weight=0.5, policy=early
    )
    left, right = answers.left.numpy(), answers.right.numpy()
    assert (
        len(answers) == 60 and answers.weight is not None and set(answers.weight.tolist()) == {0.5}
    )
    assert (shown[left] != shown[right]).all() and np.array_equal(answers.share.bool(), shown[left])
    assert max(left.max(), right.max()) < 25 and 0.3 < answers.share.mean() < 0.7
    assert len(demonstration_answers(shown, shown * 0 > 1, count=999, seed=0)) == 300
