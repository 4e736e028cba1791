"""TQC against the paper's formulas, a number at a time; who gets a gradient; and a bandit that it
solves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from equipoise.algorithms.tqc import TQC
from equipoise.types import EnvSpec
from tests.algorithms.items import (
    BOX,
    batch,
    drawn,
    generator,
    learn,
    network,
    target,
    touched,
    trained,
    trajectory,
)

GAMMA, ALPHA = 0.9, 0.3
SMALL: dict[str, Any] = {"hidden": (16, 16), "gamma": GAMMA, "temperature": ALPHA}


def make(algorithm: TQC, seed: int) -> Any:
    return network(algorithm, BOX, seed)


@pytest.mark.parametrize(
    ("critics", "quantiles", "drop"), [(2, 25, 2), (5, 7, 0), (1, 3, 2), (2, 1, 0)]
)
def test_the_largest_quantiles_of_all_critics_are_left_out(
    critics: int, quantiles: int, drop: int
) -> None:
    algorithm = TQC(critics=critics, quantiles=quantiles, drop=drop, **SMALL)
    net, target_net, data = make(algorithm, 0), make(algorithm, 1), drawn(BOX, 1, 20, 0)
    got = target(algorithm, net, target_net, data, seed=7)["target"]
    with torch.no_grad():
        action, logp = net.actor.sample(data.obs[1], torch.randn(20, 2, generator=generator(7)))
        theta = target_net.critic(data.obs[1], action)
    assert theta.shape == (critics, 20, quantiles) and got.shape == (
        critics * (quantiles - drop),
        20,
    )
    for b in range(20):
        atoms = sorted(theta[i, b, m].item() for i in range(critics) for m in range(quantiles))
        atoms = atoms[: critics * (quantiles - drop)]
        discount = GAMMA * float(data.bootstrap[0, b])
        wanted = [data.reward[0, b].item() + discount * (z - ALPHA * logp[b].item()) for z in atoms]
        assert got[:, b].tolist() == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_the_losses_are_the_papers() -> None:
    algorithm = TQC(critics=3, quantiles=4, drop=1, **SMALL)
    net, target_net, data = make(algorithm, 0), make(algorithm, 1), drawn(BOX, 1, 10, 0)
    with torch.no_grad():
        theta = net.critic(data.obs[0], net.bounds.from_env(data.action[0]))
        y = target(algorithm, net, target_net, data)["target"]
        action, logp = net.actor.sample(data.obs[0], torch.randn(10, 2, generator=generator(1)))
        mine = net.critic(data.obs[0], action).mean((0, 2))
    total = 0.0
    for b in range(10):
        for i in range(3):
            for m in range(4):
                for k in range(9):
                    u = (y[k, b] - theta[i, b, m]).item()
                    huber = 0.5 * u * u if abs(u) <= 1 else abs(u) - 0.5
                    total += abs((2 * m + 1) / 8 - (u < 0)) * huber / (3 * 4 * 9)
    out = learn(algorithm, net, target_net, data, "critic")
    assert out.loss.item() == pytest.approx(total, rel=1e-4)
    assert out.priority.tolist() == pytest.approx(
        (y.mean(0) - theta.mean((0, 2))).abs().tolist(), rel=1e-4
    )
    assert touched(net) == {"critic"}
    out = learn(algorithm, net, target_net, data, "actor")
    assert out.loss.item() == pytest.approx((ALPHA * logp - mine).sum().item(), rel=1e-4)
    assert touched(net) == {"actor"}
    learn(algorithm, net, target_net, data, "temperature")
    assert touched(net) == {"log_temperature"}


def test_the_actors_gradient_is_autograds() -> None:
    algorithm = TQC(**SMALL)
    net, data = make(algorithm, 0), drawn(BOX, 1, 10, 0)
    learn(algorithm, net, net, data, "actor")
    got = [p.grad.clone() for p in net.actor.parameters()]
    action, logp = net.actor.sample(data.obs[0], torch.randn(10, 2, generator=generator(1)))
    loss = (ALPHA * logp - net.critic(data.obs[0], action).mean((0, 2))).sum()
    for mine, wanted in zip(
        got, torch.autograd.grad(loss, list(net.actor.parameters())), strict=True
    ):
        torch.testing.assert_close(mine, wanted)


def test_quantiles_that_are_all_dropped_are_refused() -> None:
    with pytest.raises(
        ValueError, match="algorithm.drop: expected less than algorithm.quantiles=3, got 3"
    ):
        TQC(quantiles=3, drop=3).network(BOX)


@pytest.mark.thorough
def test_it_learns_a_bandit_and_its_noise() -> None:
    """Of a reward that is uniform around -(a - 2)^2. Errors below kappa count squared, so its
    expectiles are learned.
    """
    action = torch.rand(1, 512, 1, generator=generator()) * 4 - 1
    reward = -((action[..., 0] - 2.0) ** 2) + torch.rand(1, 512, generator=generator(1)) - 0.5
    data = trajectory(torch.ones(2, 512, 1), action, reward, bootstrap=np.zeros((1, 512), bool))
    spec = EnvSpec(
        observation=spaces.Box(-1.0, 1.0, (1,), np.float32),
        action=spaces.Box(-1.0, 3.0, (1,), np.float32),
    )
    algorithm = TQC(hidden=(64,), temperature=0.1, target_entropy=-1.0, quantiles=5)
    net = trained(algorithm, spec, batch(data), 1500, learning_rate=5e-3)
    best = algorithm.best(net, torch.ones(1, 1), torch.zeros(1, dtype=torch.bool), {})[0]
    assert best.item() == pytest.approx(2.0, abs=0.2)
    with torch.no_grad():
        # 2 in the env's terms
        theta = net.critic(torch.ones(1, 1), torch.tensor([[0.5]]))[:, 0].mean(0)
    roots = [((2 * m + 1) / 10) ** 0.5 for m in range(5)]
    expectiles = [
        0.5 * (up - down) / (up + down) for up, down in zip(roots, reversed(roots), strict=True)
    ]
    assert theta.tolist() == pytest.approx(expectiles, abs=0.08)
