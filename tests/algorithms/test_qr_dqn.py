"""QR-DQN against algorithm 1 of the paper, a number at a time."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.algorithms.qr_dqn import QRDQN
from tests.algorithms.items import DISCRETE, drawn, learn, network, target

GAMMA, N = 0.9, 5
SMALL: dict[str, Any] = {"hidden": (16,), "gamma": GAMMA, "quantiles": N}


def test_the_target_and_the_loss_are_the_papers() -> None:
    algorithm = QRDQN(**SMALL)
    net, target_net, data = (
        network(algorithm, DISCRETE, 0),
        network(algorithm, DISCRETE, 1),
        drawn(DISCRETE, 1, 12, 0),
    )
    theta, following = net(data.obs[0]).detach(), target_net(data.obs[1]).detach()
    got = target(algorithm, net, target_net, data)["target"]
    total, chosen = 0.0, set()
    for b in range(12):
        best = max(range(4), key=lambda a: following[b, a].mean().item())
        chosen.add(best == int(net(data.obs[1])[b].mean(-1).argmax()))
        y = [
            data.reward[0, b].item() + GAMMA * float(data.bootstrap[0, b]) * z.item()
            for z in following[b, best]
        ]
        assert got[b].tolist() == pytest.approx(y, rel=1e-5, abs=1e-6)
        for i in range(N):
            for j in range(N):
                u = y[j] - theta[b, int(data.action[0, b]) - 2, i].item()
                huber = 0.5 * u * u if abs(u) <= 1 else abs(u) - 0.5
                total += abs((2 * i + 1) / (2 * N) - (u < 0)) * huber / N
    assert chosen == {True, False}, "the target network chooses, and not always as the other would"
    assert learn(algorithm, net, target_net, data, "all").loss.item() == pytest.approx(
        total, rel=1e-4
    )


def test_the_defaults_are_those_of_sb3_contrib() -> None:
    made = QRDQN()
    assert (made.quantiles, made.double, made.distribution, made.epsilon, made.gamma) == (
        200,
        False,
        "quantile",
        0.01,
        0.99,
    )
    optimizer = made.default_optimizer
    assert (optimizer.learning_rate, optimizer.epsilon, optimizer.max_grad_norm) == (
        5e-5,
        0.01 / 32,
        0.0,
    )
