"""Fitting a reward model to answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from equipoise.nets.twin import TwinMLP
from equipoise.rewards.preferences.fit import Fit, Fitting, evaluate, fit, measure
from equipoise.rewards.preferences.segments import Answers
from equipoise.rewards.preferences.teacher import bayes_accuracy, expected_accuracy
from tests.rewards.preferences.data import asked, behaviour, model

pytestmark = pytest.mark.usefixtures("one_thread")
SHORT = Fitting(epochs=3, batch=32)


def test_a_known_reward_is_found() -> None:
    segments, rewards = behaviour(600)
    answers, _ = asked(segments, rewards, 800)
    one = model()
    held = fit(one, segments, answers, Fitting(epochs=10, learning_rate=1e-2), seed=0)
    fresh, true = behaviour(400, seed=9)
    test, chance = asked(fresh, true, 1500, seed=5)
    returns = one.all_returns(fresh).mean(0)
    predicted = one.chance(returns[test.left] - returns[test.right]).numpy()
    assert expected_accuracy(chance, predicted) > bayes_accuracy(chance) - 0.03
    assert evaluate(one, fresh, test).ece < 0.06
    mean, _ = one.rewards(fresh.obs, fresh.action)
    rows = fresh.mask.numpy()
    assert np.corrcoef(mean.numpy()[rows], true[rows])[0, 1] > 0.93
    assert held.answers > 80 and abs(held.accuracy - bayes_accuracy(chance)) < 0.12


def test_a_fit_is_a_function_of_its_seed() -> None:
    segments, rewards = behaviour(100)
    answers, _ = asked(segments, rewards, 150)
    found = []
    for seed in (0, 0, 1):
        one = model()
        fit(one, segments, answers, SHORT, seed=seed)
        found.append(one.rewards(segments.obs, segments.action)[0])
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_a_resumed_fit_has_the_same_bits() -> None:
    segments, rewards = behaviour(100)
    answers, _ = asked(segments, rewards, 400)
    settings = Fitting(epochs=6, batch=32, learning_rate=1e-2)
    whole = Fit(model(), segments, answers, settings, seed=0)
    losses = [whole.epoch() for _ in range(6)]
    first = Fit(model(), segments, answers, settings, seed=0)
    assert [first.epoch() for _ in range(2)] == losses[:2]
    state = first.state()
    first.epoch()  # what was handed out must not change
    second = Fit(model(seed=7), segments, answers, settings, seed=0)
    second.load(state)
    assert second.epochs == 2 and [second.epoch() for _ in range(4)] == losses[2:]
    assert second.finished and second.finish() == whole.finish()
    one, other = (x._model.state_dict() for x in (whole, second))
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_the_best_parameters_are_taken_and_patience_ends_a_fit() -> None:
    segments, rewards = behaviour(150)
    answers, _ = asked(segments, rewards, 800)
    settings = Fitting(learning_rate=0.1, patience=3, batch=20)  # a pass has 36 steps
    one = Fit(model(), segments, answers, settings, seed=0)
    losses = []
    while not one.finished:
        losses.append(one.epoch())
    assert len(losses) < 60 and losses.index(min(losses)) == len(losses) - 4
    one.finish()
    one._model.temperature.fill_(1.0)
    assert float(one._held_loss(torch.ones(1))[0]) == pytest.approx(min(losses), abs=1e-6)


def test_a_fit_to_few_answers_ends_no_sooner_than_a_hundred_steps_after_its_best() -> None:
    segments, rewards = behaviour(150)
    answers, _ = asked(segments, rewards, 800)
    one = Fit(model(), segments, answers, Fitting(learning_rate=0.1, patience=3), seed=0)
    losses = []
    while not one.finished:
        losses.append(one.epoch())
    waited = len(losses) - 1 - losses.index(min(losses))
    assert len(losses) < 60 and waited == 9  # passes of 12 steps


def test_each_member_has_a_bootstrap_of_its_own() -> None:
    segments, rewards = behaviour(100)
    answers, _ = asked(segments, rewards, 150)
    weighted = Answers(answers.left, answers.right, answers.share, torch.full((150,), 2.0))
    weight = Fit(model(), segments, weighted, SHORT, seed=0)._weight
    assert torch.equal(weight.sum(1), torch.full((3,), 2.0 * weight.shape[1]))
    assert not torch.equal(weight[0], weight[1])
    assert 0.25 < (weight == 0).float().mean() < 0.5
    single = Fit(model(members=1), segments, answers, SHORT, seed=0)._weight
    assert torch.equal(single, torch.ones_like(single))


def test_answers_without_weight_teach_nothing() -> None:
    segments, rewards = behaviour(200)
    answers, _ = asked(segments, rewards, 200, share=0.0)
    wrong = Answers(answers.right, answers.left, answers.share)
    both = Answers(
        torch.cat([answers.left, wrong.left]),
        torch.cat([answers.right, wrong.right]),
        answers.share.repeat(2),
        torch.cat([torch.ones(200), torch.zeros(200)]),
    )
    one = model()
    fit(one, segments, both, Fitting(epochs=8, learning_rate=1e-2, held_out=0.0), seed=0)
    assert evaluate(one, segments, answers).accuracy > 0.75


def test_the_temperature_makes_overconfident_chances_calibrated() -> None:
    segments, rewards = behaviour(300)
    answers, _ = asked(segments, rewards, 2000, share=0.5)
    settings = Fitting(epochs=4, learning_rate=1e-2, held_out=0.5)
    one = Fit(model(), segments, answers, settings, seed=0)
    for _ in range(4):
        one.epoch()
    with torch.no_grad():  # returns become five times as large
        for weight in (one._best["net.weights.2"], one._best["net.biases.2"]):
            weight.mul_(5.0)
    held = one.finish()
    assert 3 < float(one._model.temperature) < 10 and held.ece < 0.06


def test_few_answers_fit_without_a_held_out_side() -> None:
    segments, rewards = behaviour(20)
    answers, _ = asked(segments, rewards, 12)
    one = model()
    assert math.isnan(fit(one, segments, answers, SHORT, seed=0).accuracy)
    assert float(one.temperature) == 1.0
    with pytest.raises(ValueError, match="must have answers to learn from, got 0 of 0"):
        Fit(one, segments, answers.take(torch.arange(0)), seed=0)


def test_ties_alone_are_refused() -> None:
    segments, rewards = behaviour(20)
    answers, _ = asked(segments, rewards, 12)
    ties = Answers(answers.left, answers.right, torch.full((12,), 0.5))
    with pytest.raises(ValueError, match="must have an answer that prefers a side, got 12 ties"):
        Fit(model(), segments, ties, seed=0)


def test_measures_by_hand() -> None:
    chance = torch.tensor([0.9, 0.2, 0.6, 0.55])
    share = torch.tensor([1.0, 0.0, 0.0, 0.5])
    found = measure(chance, share)
    assert found.accuracy == pytest.approx(2 / 3) and found.answers == 4
    # bins of 0.05: 0.9 -> 1, 0.8 -> 1, 0.6 -> 0, 0.55 -> 0.5
    assert found.ece == pytest.approx((0.1 + 0.2 + 0.6 + 0.05) / 4, abs=1e-6)
    loss = [math.log(0.9), math.log(0.8), math.log(0.4), (math.log(0.55) + math.log(0.45)) / 2]
    assert found.log_loss == pytest.approx(-sum(loss) / 4)
    turned = measure(1 - chance, 1 - share)
    assert (turned.accuracy, turned.ece) == pytest.approx((found.accuracy, found.ece), abs=1e-6)
    weighted = measure(chance, share, torch.tensor([1.0, 1.0, 0.0, 0.0]))
    assert weighted.accuracy == 1.0 and weighted.ece == pytest.approx(0.15, abs=1e-6)


def test_noise_bounds_a_chance_however_far_apart_returns_are() -> None:
    segments, _ = behaviour(20)
    for noise, most in ((0.0, 1.0), (0.3, 0.85)):
        one = model(noise=noise)
        returns = 1000 * one.all_returns(segments)
        assert float(one.chance(returns[:, :1] - returns).max()) == pytest.approx(most, abs=1e-3)


def test_wrong_answers_cost_less_if_noise_is_expected() -> None:
    segments, rewards = behaviour(100)
    answers, _ = asked(segments, rewards, 100, share=0.0)
    losses = []
    for noise in (0.0, 0.2):
        one = model(noise=noise)
        assert isinstance(one.net, TwinMLP)
        with torch.no_grad():
            one.net.weights[-1].mul_(1000.0)  # sure, and as often wrong as right
        losses.append(Fit(one, segments, answers, Fitting(held_out=0.0), seed=0).epoch())
    assert losses[0] > 10 and losses[1] < -math.log(0.1)
