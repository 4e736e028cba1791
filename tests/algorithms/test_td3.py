"""TD3 against algorithm 1 of the paper: smoothing, the delay, who gets a gradient; and a bandit
that it solves.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from equipoise.algorithms.td3 import TD3
from equipoise.learners.learner import Learner
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

SMALL: dict[str, Any] = {"hidden": (16, 16), "gamma": 0.9}


@pytest.mark.parametrize(("noise", "clip"), [(0.2, 0.5), (2.0, 0.3), (0.0, 0.5)])
def test_the_target_is_smoothed_within_its_clip_and_the_bounds(noise: float, clip: float) -> None:
    algorithm = TD3(target_noise=noise, noise_clip=clip, **SMALL)
    net, target_net = network(algorithm, BOX, 0), network(algorithm, BOX, 1)
    data = drawn(BOX, 1, 200, 0)
    with torch.no_grad():
        target_net.actor.head.weight *= 3.0  # near the bounds, too
        mu = target_net.actor(data.obs[1])
        z = torch.randn(200, 2, generator=generator(7)).numpy()
        action = np.clip(mu.numpy() + np.clip(noise * z, -clip, clip), -1, 1)
        assert (np.abs(action) == 1).any() == (noise > 0) and np.abs(
            action - mu.numpy()
        ).max() <= clip + 1e-6
        value = target_net.critic(data.obs[1], torch.from_numpy(action).float()).amin(0)
        expected = data.reward[0] + 0.9 * data.bootstrap[0] * value
    torch.testing.assert_close(target(algorithm, net, target_net, data, seed=7)["target"], expected)


def test_losses_and_gradients() -> None:
    algorithm = TD3(**SMALL)
    net, target_net = network(algorithm, BOX, 0), network(algorithm, BOX, 1)
    data = drawn(BOX, 1, 30, 0)
    out = learn(algorithm, net, target_net, data, "critic")
    wanted = target(algorithm, net, target_net, data)["target"]
    scaled = torch.stack([data.action[0][:, 0] / 2, data.action[0][:, 1] * 2 - 1], -1)
    with torch.no_grad():
        q, mine = net.critic(data.obs[0], scaled), net.critic(data.obs[0], net.actor(data.obs[0]))
    assert out.loss.item() == pytest.approx(0.5 * (q - wanted).square().sum().item(), rel=1e-5)
    assert touched(net) == {"critic"}
    out = learn(algorithm, net, target_net, data, "actor")
    assert out.loss.item() == pytest.approx(-mine[0].sum().item(), rel=1e-4)
    assert touched(net) == {"actor"}


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_the_actor_and_the_targets_wait_for_their_turn(delay: int) -> None:
    algorithm = TD3(delay=delay, target_every=delay, **SMALL)
    made = Learner(algorithm, network(algorithm, BOX, 0), schedule_updates=4, seed=0, batch=8)
    parts = {"critic": made.net.critic, "actor": made.net.actor, "target": made._target.net}  # type: ignore[union-attr]
    for update in range(1, 10):  # also past the end of the schedule
        before = {
            name: torch.cat([p.detach().flatten().clone() for p in part.parameters()])
            for name, part in parts.items()
        }
        out = made.step(batch(drawn(BOX, 1, 8, update)))
        moved = {
            name: not torch.equal(before[name], torch.cat([p.flatten() for p in part.parameters()]))
            for name, part in parts.items()
        }
        turn = update % delay == 0
        assert moved == {"critic": True, "actor": turn, "target": turn}
        assert ("actor_loss" in out.metrics) == turn and out.priority is not None


def test_a_learner_that_was_loaded_keeps_the_turns() -> None:
    algorithm = TD3(delay=3, target_every=2, **SMALL)
    one, other = (
        Learner(algorithm, network(algorithm, BOX, seed), schedule_updates=9, seed=0, batch=8)
        for seed in (0, 1)
    )
    for update in range(4):
        one.step(batch(drawn(BOX, 1, 8, update)))
    other.load(copy.deepcopy(one.state()))
    for update in range(4, 9):
        for made in (one, other):
            made.step(batch(drawn(BOX, 1, 8, update)))
    assert all(torch.equal(x, other.params()[name]) for name, x in one.params().items())


def test_noise_explores_around_the_action() -> None:
    algorithm = TD3(noise=0.2, random_steps=0, **SMALL)
    net = network(algorithm, BOX, 0)
    obs, first = torch.zeros(5000, 3), torch.zeros(5000, dtype=torch.bool)
    noise = torch.rand(5000, 2, generator=generator())
    with torch.no_grad():
        action = algorithm.act(net, obs, first, {}, explore={}, noise=noise)[0]
        middle = algorithm.best(net, obs[:1], first[:1], {})[0]
    assert action.std(0).tolist() == pytest.approx([0.2 * 2.0, 0.2 * 0.5], rel=0.05)
    assert action.mean(0).tolist() == pytest.approx(middle[0].tolist(), abs=0.02)


def test_it_learns_a_bandit() -> None:
    action = torch.rand(1, 256, 1, generator=generator()) * 4 - 1
    data = trajectory(
        torch.ones(2, 256, 1),
        action,
        -((action[..., 0] - 0.4) ** 2),
        bootstrap=np.zeros((1, 256), bool),
    )
    algorithm = TD3(hidden=(64,), delay=4)
    spaced = EnvSpec(
        observation=spaces.Box(-1.0, 1.0, (1,), np.float32),
        action=spaces.Box(-1.0, 3.0, (1,), np.float32),
    )
    net = trained(algorithm, spaced, batch(data), 800, learning_rate=5e-3)
    assert algorithm.best(net, torch.ones(1, 1), torch.zeros(1, dtype=torch.bool), {})[
        0
    ].item() == pytest.approx(0.4, abs=0.15)
