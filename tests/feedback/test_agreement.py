"""Agreement: alpha as the package krippendorff computes it, and errors of annotators who were made
to err.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from equipoise.feedback.agreement import CLASSES, agreement, alpha, dawid_skene, weights
from equipoise.feedback.records import Answer, Choice

GOLDEN = json.loads((Path(__file__).parent / "krippendorff.json").read_text())["cases"]
ANNOTATORS = 11  # ten with errors of 0 to 30 %, and a spammer
PER_QUERY = 3


def made(seed, queries):
    """Answers by ten annotators and a spammer -> (query, annotator, choice, right answers)."""
    draw = np.random.default_rng(seed)
    error = np.append(np.linspace(0, 0.3, ANNOTATORS - 1), 0.0)
    truth = draw.choice(3, queries, p=[0.425, 0.15, 0.425])
    query = np.repeat(np.arange(queries), PER_QUERY)
    annotator = np.argsort(draw.random((queries, ANNOTATORS)), axis=1)[:, :PER_QUERY].ravel()
    wrong = draw.random(len(query)) < error[annotator]
    other = (truth[query] + draw.integers(1, 3, len(query))) % 3
    choice = np.where(wrong, other, truth[query])
    spam = annotator == ANNOTATORS - 1
    choice[spam] = draw.integers(0, 3, spam.sum())
    return query, annotator, choice, truth


def worst(seed, queries):
    """The largest difference between a found error and the share of wrong answers, and the
    spammers.
    """
    query, annotator, choice, truth = made(seed, queries)
    fit = dawid_skene(query, annotator, choice)
    wrong = choice != truth[query]
    real = np.array([wrong[annotator == one].mean() for one in range(ANNOTATORS)])
    return float(np.abs(fit.error - real).max()), np.flatnonzero(fit.spammers).tolist()


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("level", ["nominal", "ordinal"])
def test_alpha_equals_that_of_the_package_krippendorff(name, level):
    ratings = np.array(GOLDEN[name]["ratings"], dtype=np.float64)
    assert alpha(ratings, level) == pytest.approx(GOLDEN[name][level], abs=1e-9)


def test_alpha_of_too_little_is_not_a_number():
    assert math.isnan(alpha(np.array([[0.0, np.nan], [np.nan, 1.0]])))
    assert math.isnan(alpha(np.array([[1.0, 1.0], [1.0, 1.0]])))
    assert math.isnan(alpha(np.full((2, 3), np.nan)))


def test_errors_are_recovered_and_the_spammer_is_flagged():
    for seed in range(2):
        difference, spammers = worst(seed, 3000)
        assert difference < 0.03 and spammers == [10]


@pytest.mark.thorough
def test_errors_are_recovered_for_20_seeds():
    found = [worst(seed, 3000) for seed in range(20)]
    assert max(difference for difference, _ in found) < 0.03
    assert all(spammers == [10] for _, spammers in found)


def test_the_posterior_is_better_than_a_vote():
    query, annotator, choice, truth = made(0, 3000)
    fit = dawid_skene(query, annotator, choice)
    votes = np.zeros((3000, 3))
    np.add.at(votes, (query, choice), 1)
    voted = (votes.argmax(1) == truth).mean()
    assert (fit.posterior.argmax(1) == truth).mean() > voted + 0.015
    np.testing.assert_allclose(fit.posterior.sum(1), 1)


def test_an_annotator_who_always_answers_the_same_is_flagged_and_one_with_few_answers_is_not():
    query, annotator, choice, _ = made(3, 2000)
    choice[annotator == 10] = 0
    assert np.flatnonzero(dawid_skene(query, annotator, choice).spammers).tolist() == [10]
    few = np.flatnonzero(annotator == 10)[19:]
    kept = np.delete(np.arange(len(query)), few)
    fit = dawid_skene(query[kept], annotator[kept], choice[kept])
    assert fit.answers[10] == 19 and not fit.spammers.any()


def test_gold_answers_are_certain():
    query = np.array([0, 0, 1, 1])
    annotator = np.array([0, 1, 0, 1])
    choice = np.array([0, 0, 2, 2])
    fit = dawid_skene(query, annotator, choice, {0: 2})
    assert fit.posterior[0].tolist() == [0, 0, 1]


def answer(row, query, name, choice, swapped=None, repeat=False):
    return Answer(row, query, name, choice, swapped, 1.0, 0.0, repeat)


def test_the_answers_of_a_store_are_summed_up():
    found = agreement(
        [
            answer(1, 5, "ann", "left", swapped=False),
            answer(2, 5, "ben", "left", swapped=True),
            answer(3, 6, "ann", "right", swapped=True),
            answer(4, 6, "ben", "cannot_tell"),
            answer(5, 5, "ann", "equal", repeat=True),
            answer(6, 7, "ann", "equal"),
            answer(7, 7, "ben", "equal"),
        ],
        {5: "left"},
    )
    assert found.nominal == found.ordinal == 1.0 and found.shared == 2
    ann, ben = found.annotators["ann"], found.annotators["ben"]
    assert (ann.answers, ann.gold, ann.repeats, ann.left_on_screen) == (4, 0.5, 0.0, 1.0)
    assert (ben.answers, ben.gold, ben.left_on_screen) == (3, 1.0, 0.0)
    assert math.isnan(ben.repeats) and not ann.spammer
    assert set(found.posterior) == {5, 6, 7} and CLASSES == ("left", "equal", "right")
    assert found.posterior[5] == (1.0, 0.0, 0.0)


def test_no_answer_is_no_agreement():
    found = agreement([answer(1, 1, "ann", "cannot_tell")])
    assert math.isnan(found.nominal) and found.annotators["ann"].answers == 1
    assert agreement([]).annotators == {}


def test_agreement_does_not_depend_on_the_sides_that_queries_have():
    query, annotator, choice, _ = made(0, 400)
    choice = np.where(annotator == 10, choice, 2)  # ten people always choose the newer clip
    answers = [
        answer(i, int(q) + 1, str(a), CLASSES[c])
        for i, (q, a, c) in enumerate(zip(query, annotator, choice, strict=True))
    ]
    found = agreement(answers)
    assert found.nominal > 0.5 and alpha_of(query, annotator, choice) < 0.1
    assert [name for name, one in found.annotators.items() if one.spammer] == ["10"]
    assert all(posterior[2] > 0.9 for posterior in found.posterior.values())


def alpha_of(query, annotator, choice):
    ratings = np.full((ANNOTATORS, query.max() + 1), np.nan)
    ratings[annotator, query] = choice
    return alpha(ratings)


def test_people_whom_nobody_checks_have_no_error():
    own = [answer(i, i, "ann", "left") for i in range(1, 30)]
    found = agreement([*own, answer(40, 1, "ben", "right")])
    assert math.isnan(found.annotators["ann"].error)
    assert math.isnan(found.annotators["ben"].error) and found.shared == 1
    checked = agreement(own, dict.fromkeys(range(1, 30), "left"))
    assert checked.annotators["ann"].error < 1e-6


def test_weights_are_youden_s_j_and_0_for_a_spammer() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(2, size=300)
    said: list[Answer] = []
    for name, error in (("good", 0.02), ("weak", 0.3), ("spammer", 0.5), ("ann", 0.05)):
        for query, right in enumerate(truth.tolist()):
            side = right != (rng.random() < error)
            choice: Choice = "left" if side else "right"
            said.append(Answer(len(said) + 1, query + 1, name, choice, None, None, 0.0, False))
    said.append(Answer(len(said) + 1, 1, "new", "left", None, None, 0.0, False))
    found = weights(said)
    assert found["good"] > 0.9 > found["weak"] > 0.25
    assert found["spammer"] == 0.0 and found["new"] == 1.0
    alone = [one for one in said if one.annotator == "spammer"]
    assert weights(alone) == {"spammer": 1.0} and weights([]) == {}
