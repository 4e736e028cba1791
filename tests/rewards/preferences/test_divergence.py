"""The KL divergence of a policy since the last fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise import api
from equipoise.algorithms.dqn import DQN
from equipoise.algorithms.ppo import PPO
from equipoise.algorithms.sac import SAC
from equipoise.rewards.preferences.divergence import StochasticPolicy, is_measured
from equipoise.types import EnvSpec
from tests.algorithms.items import BOX, DISCRETE, network
from tests.rewards.preferences.test_loop import program

OBS = torch.randn(1, 3, generator=torch.Generator().manual_seed(0)).expand(20_000, 3)


def nudged(algorithm: Any, spec: EnvSpec, much: float) -> Any:
    net = network(algorithm, spec, 0)
    with torch.no_grad():
        for one in net.parameters():
            one.add_(much * torch.randn(one.shape, generator=torch.Generator().manual_seed(1)))
    return net


@pytest.mark.parametrize(
    ("algorithm", "spec"),
    [(PPO(), DISCRETE), (PPO(), BOX), (PPO(sde_every=4), BOX), (SAC(), DISCRETE), (SAC(), BOX)],
)
def test_a_policy_is_at_no_distance_from_itself_and_at_some_from_another(
    algorithm: Any, spec: EnvSpec
) -> None:
    with torch.no_grad():
        net = network(algorithm, spec, 0)
        drawn = StochasticPolicy(algorithm, net).draw(OBS[:500], spec, seed=3)
        assert StochasticPolicy(algorithm, net).divergence(drawn) == pytest.approx(0.0, abs=1e-6)
        near, far = (
            StochasticPolicy(algorithm, nudged(algorithm, spec, much)).divergence(drawn)
            for much in (0.01, 0.05)
        )
    assert 0 < near < far


def test_the_divergence_is_that_of_the_two_distributions() -> None:
    algorithm = PPO()
    with torch.no_grad():
        one, other = network(algorithm, DISCRETE, 0), nudged(algorithm, DISCRETE, 0.1)
        drawn = StochasticPolicy(algorithm, one).draw(OBS, DISCRETE, seed=3)
        found = StochasticPolicy(algorithm, other).divergence(drawn)
        first, actions = torch.zeros(4, dtype=torch.bool), torch.arange(4) + 2
        logp, moved = (
            algorithm.propensity(net, OBS[:4], first, {}, actions, explore={})
            for net in (one, other)
        )
    assert logp is not None and moved is not None
    assert found == pytest.approx(float((logp.exp() * (logp - moved)).sum()), rel=0.1)


def test_policies_without_a_distribution_or_with_a_memory_are_not_measured() -> None:
    assert is_measured(PPO()) and is_measured(SAC())
    assert not is_measured(DQN()) and not is_measured(PPO(core="lstm"))


def test_a_limit_that_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"reward.preferences.kl: must be 0, since it needs"):
        program(tmp_path / "store", 64, "reward.kl=1", "algorithm.core=gru")


@pytest.mark.thorough
def test_reports_have_the_divergence(tmp_path: Path) -> None:
    made = program(tmp_path / "store", 320, "reward.teacher=synthetic")
    run = api.start(made, on="serial", out=tmp_path / "run")
    assert [report.metrics for report in run][-1]["preferences_kl"] > 0
