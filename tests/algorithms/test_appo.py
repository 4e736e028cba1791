"""APPO against the paper's formula in NumPy, and against PPO where the two are one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from equipoise import api
from equipoise.algorithms.appo import APPO
from equipoise.algorithms.ppo import PPO
from tests.algorithms.windows import GAMMA, T, learn, mean, network, window
from tests.returns import oracle

SEEDS = range(20)


@pytest.mark.parametrize("seed", SEEDS)
def test_without_lag_and_with_a_fresh_target_it_is_ppo(seed: int) -> None:
    """In the first minibatch, where the network is the target network and acted itself."""
    common: dict[str, Any] = {
        "gamma": GAMMA,
        "lambda_": 0.8,
        "clip": 0.2,
        "entropy": 0.02,
        "value": 0.7,
    }
    ours, ppo = APPO(kl=0.5, **common), PPO(**common)
    net = network(ours, seed)
    data = window(ours, net, seed)
    a, b = learn(ours, net, network(ours, seed), data), learn(ppo, net, None, data)
    for name in ("target", "advantage"):
        torch.testing.assert_close(a.targets[name], b.targets[name])
    assert a.loss == pytest.approx(b.loss, rel=1e-4)
    torch.testing.assert_close(a.gradient, b.gradient)
    assert mean(a.out, "clip_fraction") == 0.0 and mean(a.out, "kl") == pytest.approx(
        0.0, abs=1e-12
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_with_lag_it_is_the_papers_formula(seed: int) -> None:
    """mu acted, pi_target stands still, pi learns: three networks that have nothing in common."""
    algorithm = APPO(
        gamma=GAMMA,
        lambda_=0.8,
        clip=0.3,
        clip_rho=1.2,
        clip_c=0.9,
        clip_worker=1.5,
        kl=0.4,
        entropy=0.02,
        value=0.7,
        normalize_advantage=False,
    )
    acting, target_net, net = (network(algorithm, 3 * seed + i) for i in range(3))
    data = window(algorithm, acting, seed)
    learned = learn(algorithm, net, target_net, data)

    with torch.no_grad():
        old, new = (x.unroll(data.obs, data.first, {})[0] for x in (target_net, net))
        pi_target, pi = (np.exp(x.policy[:T].logp(data.action).numpy()) for x in (old, new))
        kl, entropy = old.policy[:T].kl(new.policy[:T]).numpy(), new.policy[:T].entropy().numpy()
    mu, mask = np.exp(data.behaviour["logp"].numpy()), data.mask.numpy()
    target, _ = oracle.per_episode(
        oracle.vtrace,
        mask=mask,
        bootstrap=data.bootstrap.numpy(),
        value=old.value.numpy(),
        seam=old.value[:-1].numpy(),
        rows={"reward": data.reward.numpy(), "log_rho": np.log(pi_target / mu)},
        gamma=GAMMA,
        lambda_=0.8,
        clip_rho=1.2,
        clip_c=0.9,
        clip_pg_rho=1.0,
    )
    advantage = target - old.value[:-1].numpy()
    ratio = np.minimum(mu / pi_target, 1.5) * pi / mu
    surrogate = np.minimum(ratio * advantage, np.clip(ratio, 0.7, 1.3) * advantage)
    error = (new.value[:-1].numpy() - target) ** 2
    terms = -surrogate + 0.4 * kl + 0.7 * error / 2 - 0.02 * entropy
    assert learned.loss == pytest.approx(terms[mask].sum(), rel=1e-5)
    expected = {
        "policy_loss": -surrogate,
        "value_error": error,
        "entropy": entropy,
        "kl": kl,
        "approx_kl": ratio - 1 - np.log(ratio),
        "clip_fraction": np.abs(ratio - 1) > 0.3,
        "rho": pi_target / mu,
        "rho_squared": (pi_target / mu) ** 2,
    }
    assert learned.out.metrics.keys() == expected.keys()
    for name, rows in expected.items():
        assert mean(learned.out, name) == pytest.approx(rows[mask].mean(), rel=1e-5, abs=1e-9), name


def test_the_target_network_gets_no_gradient_and_costs_no_pass_without_a_kl() -> None:
    algorithm = APPO(gamma=GAMMA)
    net, target_net = network(algorithm, 0), network(algorithm, 1)
    data = window(algorithm, net)
    learn(APPO(gamma=GAMMA, kl=1.0), net, target_net, data)
    assert all(p.grad is None for p in target_net.parameters())
    unroll, calls = target_net.unroll, 0

    def counting(*inputs: Any) -> Any:
        nonlocal calls
        calls += 1
        return unroll(*inputs)

    target_net.unroll = counting
    learn(algorithm, net, target_net, data)
    assert calls == 1


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("target_every=0", "target_every: expected at least 1"),
        ("clip_worker=0.5", "clip_worker: expected at least 1"),
        ("tau=0", r"tau: expected more than 0 and at most 1"),
        ("tau=1.5", r"tau: expected more than 0 and at most 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"algorithm.{said}"):
        api.program("CartPole-v1", "appo", recipe=False, settings=[f"algorithm.{setting}"])
