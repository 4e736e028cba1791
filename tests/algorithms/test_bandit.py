"""Where a divergence from a reference leads, on bandits: known in closed form for each place and
estimator.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.algorithms.grpo import GRPO, LEAST_DEVIATION
from equipoise.algorithms.rloo import RLOO
from equipoise.algorithms.token_ppo import TokenPPO
from tests.algorithms import text
from tests.algorithms.bandit import (
    expected_gradient,
    learned,
    policy,
    pulls,
    tables,
    variation,
    wanted_gradient,
)

BETA = 0.5
KL: dict[str, Any] = {"beta": BETA, "target_every": 10**9}


def reverse(p: Tensor, ref: Tensor) -> Tensor:
    return (p * (p.log() - ref.log())).sum()


def share(algorithm: Any, size: int) -> float:
    """Of a reward that is not taken back again by its own part in the mean of the group."""
    return 1.0 - 1.0 / size if isinstance(algorithm, GRPO) else 1.0


def forward(p: Tensor, ref: Tensor) -> Tensor:
    return (ref * (ref.log() - p.log())).sum()


def tilted(ref: Tensor, reward: Tensor, beta: float) -> Tensor:
    """reference exp(reward / beta), normalised: where E[reward] - beta KL(pi || reference) is
    greatest.
    """
    return (ref.log() + reward / beta).softmax(0)


def shared(ref: Tensor, reward: Tensor, beta: float) -> Tensor:
    """beta reference / (lambda - reward): where E[reward] - beta KL(reference || pi) is greatest;
    lambda by bisection.
    """
    low, high = float(reward.max()), float(reward.max()) + beta + 1.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (
            (middle, high) if float((beta * ref / (middle - reward)).sum()) > 1 else (low, middle)
        )
    return beta * ref / (high - reward)


CASES: dict[str, tuple[Any, Any]] = {
    "rloo, k1 in the reward": (RLOO(**KL), reverse),
    "rloo, k1 in the reward, of tokens": (RLOO(**KL, importance="token"), reverse),
    "rloo, k2 as loss": (RLOO(**KL, kl="k2", kl_in="loss"), reverse),
    "rloo, k3 as loss": (RLOO(**KL, kl="k3", kl_in="loss"), forward),
    "rloo, k1 as loss": (RLOO(**KL, kl="k1", kl_in="loss"), None),
    "grpo, k2 as loss": (GRPO(**KL, kl="k2", scale_rewards="none"), reverse),
    "grpo, k3 as loss, times the ratio": (GRPO(**KL, kl_ratio=True, scale_rewards="none"), reverse),
    "rloo, k1 as loss, times the ratio": (
        RLOO(**KL, kl="k1", kl_in="loss", kl_ratio=True),
        reverse,
    ),
    "token ppo, k1 in the reward": (TokenPPO(**KL, normalize_advantage=False), reverse),
    "token ppo, own critic": (TokenPPO(**KL, normalize_advantage=False, critic="own"), reverse),
    "token ppo, k2 as loss": (
        TokenPPO(**KL, normalize_advantage=False, kl="k2", kl_in="loss"),
        reverse,
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("arms", "size"), [(4, 3), (16, 2)])
def test_the_expected_gradient_is_that_of_the_objective(name: str, arms: int, size: int) -> None:
    algorithm, kl = CASES[name]
    net, reference, reward = tables(arms, seed=arms)
    text.for_(algorithm, net)
    ref = policy(reference).exp()
    got = expected_gradient(algorithm, net, reference, reward, size)
    counted = share(algorithm, size) * reward
    wanted = wanted_gradient(
        net, lambda p: (p * counted).sum() - (0.0 if kl is None else BETA * kl(p, ref))
    )
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-9)
    assert wanted.abs().max() > 1e-3


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_gone_where_theory_says(name: str) -> None:
    algorithm, kl = CASES[name]
    net, reference, reward = tables(8, seed=3)
    text.for_(algorithm, net)
    ref = policy(reference).exp()
    if kl is None:
        return
    end = (tilted if kl is reverse else shared)(ref, share(algorithm, 2) * reward, BETA)
    assert float(end.sum()) == pytest.approx(1.0, abs=1e-9)
    before = expected_gradient(algorithm, net, reference, reward, 2).abs().max()
    with torch.no_grad():
        net.head[:, 0] = end.log()
    assert (
        expected_gradient(algorithm, net, reference, reward, 2).abs().max() < 1e-6 < 1e-3 * before
    )


def test_scaled_rewards_end_at_the_reference_tilted_by_their_deviation() -> None:
    """The group is as large as the policy is fine, so its deviation is the policy's. At pi = counts
    / 64, with rewards k L, L = log pi / reference, the end pi = reference exp(r / (beta sigma))
    asks for beta = k / (sigma + 1e-4).
    """
    counts = torch.tensor([32, 16, 12, 4])
    net, reference, _ = tables(4, seed=5)
    with torch.no_grad():
        net.head[:, 0] = counts.log()
    log = policy(net) - policy(reference)
    reward = 0.7 * (log - log.min())
    arm = torch.repeat_interleave(torch.arange(4), counts)[None]
    sigma = float(reward[arm[0]].std())
    for factor, at_rest in ((1.0, True), (1.2, False)):
        algorithm = GRPO(
            beta=factor * 0.7 / (sigma + LEAST_DEVIATION), target_every=10**9, kl="k2", epsilon=0.0
        )
        data = pulls(arm, reward, policy(net))
        made = text.targets(algorithm, net, reference, data)
        out = text.loss(algorithm, net, data, made, reference=reference)
        (gradient,) = torch.autograd.grad(out.loss / out.count, [net.head])
        assert (gradient.abs().max() < 1e-6) == at_rest


SAMPLED = {
    "rloo, k1 in the reward": (RLOO(**KL, epsilon=0.0), "reverse"),
    "rloo, k2 as loss": (RLOO(**KL, kl="k2", kl_in="loss"), "reverse"),
    "rloo, k3 as loss": (RLOO(**KL, kl="k3", kl_in="loss"), "forward"),
    "grpo, k2 as loss": (GRPO(**KL, kl="k2", scale_rewards="none"), "reverse"),
    "grpo, k3 as loss": (GRPO(**KL, kl="k3", scale_rewards="none", loss_type="grpo"), "forward"),
    "token ppo, k1 in the reward": (TokenPPO(**KL, normalize_advantage=False), "reverse"),
    "token ppo, own critic": (TokenPPO(**KL, normalize_advantage=False, critic="own"), "reverse"),
}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if i else name for i, name in enumerate(SAMPLED)],
)
def test_samples_lead_there(name: str) -> None:
    algorithm, kind = SAMPLED[name]
    _, reference, reward = tables(8, seed=7)
    ref = policy(reference).exp()
    end = (tilted if kind == "reverse" else shared)(ref, reward, BETA)
    got = learned(algorithm, reward, reference, groups=64, size=16, steps=400, rate=0.05, seed=1)
    assert variation(got, end) < 0.02 < variation(ref, end)


@pytest.mark.thorough
def test_samples_lead_there_with_scaled_rewards() -> None:
    """The end is a fixed point: its deviation is that of the rewards under the end itself; small
    betas have several.
    """
    beta = 4.0
    _, reference, reward = tables(8, seed=7)
    ref = policy(reference).exp()
    end = ref
    for _ in range(500):
        sigma = ((end * reward.square()).sum() - (end * reward).sum().square()).sqrt()
        end = 0.5 * end + 0.5 * tilted(ref, reward, float(beta * sigma))
    algorithm = GRPO(beta=beta, target_every=10**9, kl="k2")
    got = learned(algorithm, reward, reference, groups=8, size=128, steps=400, rate=0.05, seed=1)
    assert variation(got, end) < 0.02 < variation(ref, end)


@pytest.mark.thorough
def test_k1_as_loss_holds_nothing_back() -> None:
    """Its expected gradient is 0, so the policy goes to the best arm, whatever beta is."""
    _, reference, reward = tables(4, seed=9)
    algorithm = RLOO(**KL, kl="k1", kl_in="loss", epsilon=0.0)
    got = learned(algorithm, reward, reference, groups=64, size=16, steps=400, rate=0.05, seed=1)
    assert got.argmax() == reward.argmax() and float(got.max()) > 0.97
