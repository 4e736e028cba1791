"""A3C against the paper's formula in NumPy, and what it leaves out on purpose."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from equipoise.algorithms.a3c import A3C
from tests.algorithms.windows import GAMMA, T, learn, mean, network, window, with_behaviour
from tests.returns import oracle

SEEDS = range(20)


@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_the_papers_formula(seed: int) -> None:
    """R is the longest n-step return: lambda is 1."""
    algorithm = A3C(gamma=GAMMA, entropy=0.02, value=0.7)
    acting, net = network(algorithm, 2 * seed), network(algorithm, 2 * seed + 1)
    data = window(algorithm, acting, seed)
    learned = learn(algorithm, net, None, data)
    with torch.no_grad():
        out = net.unroll(data.obs, data.first, {})[0]
        logp, entropy = out.policy[:T].logp(data.action).numpy(), out.policy[:T].entropy().numpy()
    mask, value = data.mask.numpy(), out.value.numpy()
    target, advantage = oracle.per_episode(
        oracle.nstep,
        mask=mask,
        bootstrap=data.bootstrap.numpy(),
        value=value,
        seam=value[:-1],
        rows={"reward": data.reward.numpy()},
        gamma=GAMMA,
        n=T,
    )
    log_ratio = logp - data.behaviour["logp"].numpy()
    expected = {
        "policy_loss": -advantage * logp,
        "value_error": (target - value[:-1]) ** 2,
        "entropy": entropy,
        "approx_kl": np.exp(log_ratio) - 1 - log_ratio,
    }
    terms = expected["policy_loss"] + 0.7 * expected["value_error"] / 2 - 0.02 * entropy
    assert learned.loss == pytest.approx(terms[mask].sum(), rel=1e-5)
    assert learned.out.metrics.keys() == expected.keys()
    for name, rows in expected.items():
        # what is rounded off goes by the rows, whose sum may be far smaller
        size = float(np.abs(rows[mask]).mean())
        assert mean(learned.out, name) == pytest.approx(
            rows[mask].mean(), rel=1e-5, abs=1e-6 * size
        ), name


def test_who_acted_does_not_matter() -> None:
    """No correction: the gradient is the same whatever the behaviour policy was."""
    algorithm = A3C(gamma=GAMMA)
    net = network(algorithm, 0)
    data = window(algorithm, net)
    other = with_behaviour(data, data.behaviour["logp"] - torch.rand_like(data.behaviour["logp"]))
    assert torch.equal(
        learn(algorithm, net, None, data).gradient, learn(algorithm, net, None, other).gradient
    )


def test_no_gradient_flows_into_the_advantage() -> None:
    """The value head's bias: only the value error moves it, by value (V - R) a real row."""
    algorithm = A3C(gamma=GAMMA, entropy=0.0, value=0.7)
    net = network(algorithm, 0)
    data = window(algorithm, net)
    learn(algorithm, net, None, data)
    with torch.no_grad():
        value = net.unroll(data.obs, data.first, {})[0].value.numpy()
    mask = data.mask.numpy()
    target, _ = oracle.per_episode(
        oracle.nstep,
        mask=mask,
        bootstrap=data.bootstrap.numpy(),
        value=value,
        seam=value[:-1],
        rows={"reward": data.reward.numpy()},
        gamma=GAMMA,
        n=T,
    )
    assert net.value_head.bias.grad.item() == pytest.approx(
        0.7 * (value[:-1] - target)[mask].sum(), rel=1e-5
    )
