"""Terms with a value output, a discount and a return of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise import api
from equipoise.algorithms.ppo import PPO
from equipoise.learners.learner import Learner
from equipoise.learners.pool import ALONE
from equipoise.types import Rewards, Trajectory, learning
from tests.algorithms.items import DISCRETE, network
from tests.rewards.test_terms import Ones, batches, train

pytestmark = pytest.mark.usefixtures("one_thread")


def by_hand(
    reward: Any, discount: Any, value: Any, mask: Any, lambda_: float
) -> np.ndarray[Any, Any]:
    """GAE of one stream, backwards along its rows."""
    advantage, last = np.zeros(len(reward)), 0.0
    for t in reversed(range(len(reward))):
        delta = reward[t] + discount[t] * value[t + 1] - value[t]
        last = delta + lambda_ * discount[t] * last if mask[t] else 0.0
        advantage[t] = last
    return advantage


@pytest.mark.parametrize("episodic", [True, False])
def test_advantages_of_each_value_are_added_with_their_weights(episodic: bool) -> None:
    algorithm = PPO(hidden=(16,), value_heads=2, normalize_advantage=False, lambda_=0.9)
    net, term = network(algorithm, DISCRETE, 0), Ones(head=True, gamma=0.8, episodic=episodic)
    made = Learner(
        algorithm,
        net,
        rewards=Rewards(sum="env-0.5*ones"),
        terms={"ones": term},
        schedule_updates=9,
        seed=0,
        batch=8,
    )
    (given,) = batches(1)
    data: Trajectory = given.data
    assert not data.mask.all() and not data.bootstrap.all(), "there are ends and seams"
    seen: Any = made._with_targets(given).targets
    value = net.unroll(data.obs, data.first, data.state)[0].value.detach().double().numpy()
    mask, bootstrap = data.mask.numpy(), data.bootstrap.numpy()
    for b in range(8):
        through = np.ones(len(mask), bool)
        env, own = (
            by_hand(reward[:, b], gamma * follows, value[:, b, number], rows, algorithm.lambda_)
            for number, (reward, gamma, follows, rows) in enumerate(
                [
                    (data.reward.numpy(), algorithm.gamma, bootstrap[:, b], mask[:, b]),
                    (
                        mask.astype(float),
                        0.8,
                        bootstrap[:, b] if episodic else through,
                        mask[:, b] if episodic else through,
                    ),
                ]
            )
        )
        np.testing.assert_allclose(seen["advantage"][:, b], env - 0.5 * own, atol=1e-5)
        for number, advantage in enumerate((env, own)):
            np.testing.assert_allclose(
                seen["target"][:, b, number], value[:-1, b, number] + advantage, atol=1e-5
            )
    assert made._with_targets(given).data.reward.equal(data.reward), "the term is not in the sum"
    made.step(given)


def test_one_value_is_as_without_the_code_for_several() -> None:
    algorithm, (given,) = PPO(hidden=(16,)), batches(1)
    net = network(algorithm, DISCRETE, 0)
    seen: Any = algorithm.targets(net, None, given.data, rng=torch.Generator(), pool=ALONE)
    assert seen["target"].shape == seen["value"].shape == given.data.shape
    assert net.value_head.weight.shape == (1, 16)


HEADED = ("reward.head=true", "reward.gamma=0.95", "reward.episodic=false", "reward.warmup=50")


@pytest.mark.thorough
def test_a_run_with_a_head_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    sizes = ("schedule.schedule_steps=512", *HEADED)
    whole = train(tmp_path / "whole", 512, *sizes, reward="env+rnd")
    train(tmp_path / "half", 256, *sizes, reward="env+rnd")
    assert train(tmp_path / "half", 512, resume=True) == whole
    assert train(tmp_path / "other", 512, *sizes, "reward.gamma=0.5", reward="env+rnd") != whole


def program(algorithm: str, *settings: str, reward: str) -> Any:
    made = api.program("CartPole-v1", algorithm, reward=reward, settings=list(settings))
    (policy,) = learning(made).values()
    return policy


def test_a_head_gives_the_algorithm_an_output_more() -> None:
    assert program("ppo", "reward.head=true", reward="env+rnd").algorithm.value_heads == 2
    both = program("ppo", "reward.rnd.head=true", "reward.counts.head=true", reward="rnd+counts")
    assert both.algorithm.value_heads == 3
    assert replace(both, rewards=Rewards()).algorithm.value_heads == 3
    assert program("ppo", "reward.head=false", reward="env+rnd").algorithm.value_heads == 1


@pytest.mark.parametrize(
    ("algorithm", "settings", "said"),
    [
        ("dqn", ["reward.head=true"], "reward.rnd.head: must be false with DQN, whose value has"),
        ("ppo", ["reward.gamma=0.9"], "reward.gamma, since the term has no value output"),
        ("ppo", ["algorithm.value_heads=2"], "algorithm.value_heads: must be 1, one more than"),
        ("ppo", ["rewards.sum=env", "algorithm.value_heads=2"], "value_heads: must be 1 without"),
        (
            "ppo",
            ["rewards.sum=rnd*counts", "reward.rnd.head=true"],
            "rnd.head: must be false for",
        ),
        ("ppo", ["reward.head=true", "reward.gamma=1.5"], "reward.rnd.gamma: expected 0 to 1"),
    ],
)
def test_a_head_that_cannot_be_is_refused(algorithm: str, settings: list[str], said: str) -> None:
    settings = settings if "rewards.sum" in settings[0] else ["rewards.sum=env+rnd", *settings]
    with pytest.raises(ValueError, match=said):
        api.program("CartPole-v1", algorithm, settings=settings)
