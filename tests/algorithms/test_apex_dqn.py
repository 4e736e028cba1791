"""Ape-X: what its actors say and what an item's first priority is of it; the ladder is R2D2's, the
loss DQN's.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.algorithms.apex_dqn import ApexDQN
from equipoise.algorithms.dqn import DQN
from tests.algorithms.items import DISCRETE, cut_rows, drawn, generator, learn, network

GAMMA = 0.9
SMALL: dict[str, Any] = {"hidden": (16,), "gamma": GAMMA}


@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.parametrize("seed", range(5))
def test_the_first_priority_is_the_td_error_of_what_the_actor_said(seed: int, n: int) -> None:
    algorithm = ApexDQN(n_step=n, **SMALL)
    data, rng = drawn(DISCRETE, algorithm.item_rows, 40, seed), generator(seed)
    q, value = (torch.randn(data.reward.shape, generator=rng) for _ in range(2))
    got = algorithm.priority(replace(data, obs={}, behaviour={"q": q, "value": value}))
    for b in range(40):
        total, scale = 0.0, 1.0
        for t in range(n):
            total += scale * float(data.reward[t, b])
            scale *= GAMMA if data.bootstrap[t, b] else 0.0
            # a seam: what the episode ended with, and its value
            if not data.bootstrap[t, b] or not data.mask[t + 1, b]:
                break
        assert got[b].item() == pytest.approx(
            abs(total + scale * value[t + 1, b].item() - q[0, b].item()), rel=1e-4, abs=1e-6
        )


@pytest.mark.parametrize("distribution", ["none", "quantile"])
@torch.inference_mode()
def test_an_actor_says_q_of_its_action_and_of_the_best(distribution: Any) -> None:
    algorithm = ApexDQN(distribution=distribution, quantiles=5, **SMALL)
    net = network(algorithm, DISCRETE, 0)
    obs, noise = torch.randn(200, 3), torch.rand(200, 2)
    explore = {"epsilon": torch.full((200,), 0.5)}
    action, said, _ = algorithm.act(
        net, obs, torch.zeros(200, dtype=torch.bool), {}, explore=explore, noise=noise
    )
    q = net(obs).mean(-1)
    assert torch.equal(said["value"], q.max(1).values) and torch.equal(
        said["q"], q[torch.arange(200), action - 2]
    )
    assert 20 < (said["q"] < said["value"]).sum() < 180
    plain = DQN(**{f.name: getattr(algorithm, f.name) for f in fields(DQN)})
    assert torch.equal(plain.act(net, obs, None, {}, explore=explore, noise=noise)[0], action)  # type: ignore[arg-type]


def test_the_loss_is_dqns_of_all_but_the_last_row() -> None:
    algorithm = ApexDQN(**SMALL)
    plain = DQN(**{f.name: getattr(algorithm, f.name) for f in fields(DQN)})
    assert (plain.item_rows, algorithm.item_rows) == (3, 4)
    net, target_net, data = (
        network(algorithm, DISCRETE, 0),
        network(algorithm, DISCRETE, 1),
        drawn(DISCRETE, 4, 20, 0),
    )
    mine, its = (
        learn(algorithm, net, target_net, data, "all"),
        learn(plain, net, target_net, cut_rows(data, 3), "all"),
    )
    assert mine.loss.item() == its.loss.item() and torch.equal(mine.priority, its.priority)


def test_epsilon_is_the_envs_own_and_may_be_come_to_slowly() -> None:
    rungs = 0.4 ** (1 + 7 * np.arange(4) / 3)
    at_once = ApexDQN(**SMALL).explore(np.arange(4), 4, 0)["epsilon"].numpy()
    np.testing.assert_allclose(at_once, rungs, rtol=1e-4)
    slowly = ApexDQN(epsilon_steps=100, **SMALL)
    for step, share in ((0, 0.0), (50, 0.5), (100, 1.0), (1000, 1.0)):
        got = slowly.explore(np.array([3, 1]), 4, step)["epsilon"].numpy()
        np.testing.assert_allclose(got, 1.0 + share * (rungs[[3, 1]] - 1.0), rtol=1e-4)
