"""Behaviour cloning: its loss is the likelihood of what was recorded, and it recovers a policy that
is known.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from equipoise.algorithms.bc import BC
from equipoise.types import EnvSpec
from tests.algorithms.items import (
    BOX,
    DISCRETE,
    batch,
    drawn,
    generator,
    masked,
    network,
    trained,
    trajectory,
)

OBS = torch.randn(1, 512, 3, generator=generator(5))
SHAPE = torch.tensor([[1.0, -0.5], [0.3, 0.8], [-0.7, 0.2]])


def cloned(spec: EnvSpec, action: Any, **options: Any) -> tuple[BC, Any]:
    algorithm = BC(hidden=(32,), **options)
    data = trajectory(torch.cat([OBS, OBS]), action, torch.zeros(1, 512))
    return algorithm, trained(algorithm, spec, batch(data), 400, learning_rate=1e-2)


def test_it_recovers_a_discrete_policy() -> None:
    teacher = (OBS[0] @ SHAPE).argmax(-1) * 2 + 2
    algorithm, net = cloned(DISCRETE, teacher[None])
    best, state = algorithm.best(net, OBS[0], torch.zeros(512, dtype=torch.bool), {})
    assert (best == teacher).float().mean() > 0.98 and state == {}


def test_it_recovers_the_probabilities_of_a_stochastic_policy() -> None:
    action = (
        torch.multinomial(
            torch.tensor([0.1, 0.2, 0.3, 0.4]).expand(512, 4), 1, generator=generator()
        )[:, 0]
        + 2
    )
    algorithm = BC(hidden=())
    data = trajectory(torch.zeros(2, 512, 3), action[None], torch.zeros(1, 512))
    net = trained(algorithm, DISCRETE, batch(data), 400, learning_rate=1e-2)
    policy, _ = net.policy(torch.zeros(1, 3), torch.zeros(1, dtype=torch.bool), {})
    counts = torch.bincount(action - 2, minlength=4) / 512
    torch.testing.assert_close(policy.log_probs.exp()[:, 0].detach(), counts, atol=0.01, rtol=0)


@pytest.mark.parametrize("squash", [False, True])
def test_it_recovers_a_box_policy(squash: bool) -> None:
    mean = torch.tanh(OBS[0] @ SHAPE) * torch.tensor([1.5, 0.4]) + torch.tensor([0.0, 0.5])
    action = mean + 0.05 * torch.randn(512, 2, generator=generator())
    algorithm, net = cloned(BOX, action[None], squash=squash)
    best, _ = algorithm.best(net, OBS[0], torch.zeros(512, dtype=torch.bool), {})
    assert (best - mean).abs().mean() < 0.06
    if not squash:
        assert net.log_std.exp().tolist() == pytest.approx([0.05, 0.05], abs=0.04)


def test_only_real_rows_and_only_states_and_actions_count() -> None:
    algorithm = BC(hidden=(16,), entropy=0.1)
    net = network(algorithm, DISCRETE, 0)
    data = drawn(DISCRETE, 5, 12, 0)
    assert not data.mask.all()
    out = algorithm.loss(net, None, batch(data), group="all", step=0.0, rng=generator())
    with torch.no_grad():
        policy = net.unroll(data.obs[:5], data.first[:5], {})[0].policy
        terms = -policy.logp(data.action) - 0.1 * policy.entropy()
    assert out is not None and out.count.item() == data.mask.sum().item()
    assert out.loss.item() == pytest.approx(terms[data.mask].sum().item(), rel=1e-5)
    torch.testing.assert_close(out.priority, -policy.logp(data.action)[0])
    other = replace(
        data, reward=data.reward + 1, bootstrap=~data.bootstrap, behaviour={"logp": data.reward}
    )
    again = algorithm.loss(net, None, batch(other), group="all", step=0.0, rng=generator())
    assert again is not None and torch.equal(out.loss, again.loss)
    assert algorithm.item_rows == 1 and algorithm.needs_replay and not algorithm.has_target


def test_masks_hold() -> None:
    spec = masked(DISCRETE)
    algorithm = BC(hidden=(16,))
    net = network(algorithm, spec, 0)
    data = drawn(spec, 1, 400, 0)
    obs = {k: v[0] for k, v in data.obs.items()}
    action, _, _ = algorithm.act(net, obs, data.first[0], {}, explore={}, noise=torch.rand(400, 1))
    assert obs["action_mask"][torch.arange(400), action - 2].all()


def test_statistics_of_observations() -> None:
    algorithm = BC(hidden=(16,), normalize_obs=True)
    shifted = OBS * 3 + 7
    data = trajectory(torch.cat([shifted, shifted]), torch.full((1, 512), 3), torch.zeros(1, 512))
    net = trained(algorithm, DISCRETE, batch(data), 1, learning_rate=3e-4)
    np.testing.assert_allclose(net.norm.mean, shifted[0].mean(0), rtol=1e-4)
    box = EnvSpec(observation=spaces.Box(-1.0, 1.0, (3,), np.float32), action=BOX.action)
    assert network(BC(hidden=(16,)), box, 0).norm is None
