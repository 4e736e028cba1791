"""CrossQ against its formulas: one batch for (s, a) and (s', a'), whose statistics act, when they
change; a bandit.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from equipoise.algorithms.crossq import CrossQ
from equipoise.learners.learner import Learner
from equipoise.nets.renorm import MOMENTUM, by_batch, norms
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
SMALL: dict[str, Any] = {
    "hidden": (16, 16),
    "critic_hidden": (32, 32),
    "gamma": GAMMA,
    "temperature": ALPHA,
}


def make(algorithm: CrossQ, seed: int = 0) -> Any:
    """Running statistics that are not those of a batch."""
    net = network(algorithm, BOX, seed)
    for norm in norms(net):
        norm.mean.normal_(0.0, 0.3)
        norm.var.uniform_(0.5, 2.0)
    return net


@pytest.mark.parametrize("n", [1, 3])
def test_the_critics_see_both_ends_as_one_batch(n: int) -> None:
    algorithm = CrossQ(n_step=n, **SMALL)
    net, data = make(algorithm), drawn(BOX, n, 30, 0)
    _, discount, following = algorithm.ahead(data)
    with torch.no_grad():
        # by the running statistics
        action, logp = net.actor.sample(following, torch.randn(30, 2, generator=generator()))
        said = target(algorithm, net, net, data)
        torch.testing.assert_close(said["action"], action)
        scaled = net.bounds.from_env(data.action[0])
        with by_batch(net.critic):
            both = net.critic(torch.cat([data.obs[0], following]), torch.cat([scaled, action]))
            alone = net.critic(data.obs[0], scaled)
        q, value = both[:, :30], both[:, 30:].amin(0) - ALPHA * logp
        error = q - (algorithm.ahead(data).reward + discount * value)
    assert not torch.allclose(q, alone, rtol=0.01)
    out = learn(algorithm, net, net, data, "critic")
    assert out.loss.item() == pytest.approx(0.5 * error.square().sum().item(), rel=1e-4)
    assert out.priority.tolist() == pytest.approx(error.abs().mean(0).tolist(), rel=1e-3, abs=1e-5)
    assert touched(net) == {"critic"}


def test_no_gradient_flows_into_the_target() -> None:
    algorithm = CrossQ(**SMALL)
    net, data = make(algorithm), drawn(BOX, 1, 30, 0)
    learn(algorithm, net, net, data, "critic")
    got = [p.grad.clone() for p in net.critic.parameters()]
    said = target(algorithm, net, net, data)
    with by_batch(net.critic):
        both = net.critic(
            data.obs[:2].flatten(0, 1),
            torch.cat([net.bounds.from_env(data.action[0]), said["action"]]),
        )
    y = data.reward[0] + GAMMA * data.bootstrap[0] * (
        both[:, 30:].amin(0) + ALPHA * said["entropy"]
    )
    loss = 0.5 * (both[:, :30] - y.detach()).square().sum()
    for mine, wanted in zip(
        got, torch.autograd.grad(loss, list(net.critic.parameters())), strict=True
    ):
        torch.testing.assert_close(mine, wanted, rtol=1e-3, atol=1e-5)


def test_the_actor_goes_by_its_batch_and_is_judged_by_running_statistics() -> None:
    algorithm = CrossQ(**SMALL)
    net, data = make(algorithm), drawn(BOX, 1, 30, 0)
    with by_batch(net.actor):
        action, logp = net.actor.sample(data.obs[0], torch.randn(30, 2, generator=generator(1)))
    loss = (ALPHA * logp - net.critic(data.obs[0], action).amin(0)).sum()
    wanted = torch.autograd.grad(loss, list(net.actor.parameters()))
    out = learn(algorithm, net, net, data, "actor")
    assert out.loss.item() == pytest.approx(loss.item(), rel=1e-4)
    assert touched(net) == {"actor"}
    for p, one in zip(net.actor.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.grad, one, rtol=1e-3, atol=1e-5)
    learn(algorithm, net, net, data, "temperature")
    assert touched(net) == {"log_temperature"}


def test_acting_uses_running_statistics_and_leaves_them() -> None:
    """So a row's action does not depend on who else acts beside it,
    and a version has one policy.
    """
    algorithm = CrossQ(random_steps=0, **SMALL)
    net = make(algorithm)
    before = copy.deepcopy(net.state_dict())
    obs, first, noise = (
        torch.randn(9, 3),
        torch.zeros(9, dtype=torch.bool),
        torch.rand(9, 2, generator=generator()),
    )
    with torch.no_grad():
        action = algorithm.act(net, obs, first, {}, explore={}, noise=noise)[0]
        alone = algorithm.act(net, obs[4:5], first[4:5], {}, explore={}, noise=noise[4:5])[0]
        algorithm.best(net, obs, first, {})
    torch.testing.assert_close(action[4:5], alone)
    algorithm.absorb(net, drawn(BOX, 1, 5, 0), pool=None)  # type: ignore[arg-type]  # nothing was learned from
    assert all(torch.equal(x, before[name]) for name, x in net.state_dict().items())


@pytest.mark.parametrize("delay", [1, 3])
def test_statistics_change_once_an_update_and_the_actor_waits_for_its_turn(delay: int) -> None:
    algorithm = CrossQ(delay=delay, **SMALL)
    made = Learner(algorithm, make(algorithm), schedule_updates=6, seed=0, batch=8)
    assert made._target is None
    parts = {"critic": made.net.critic, "actor": made.net.actor}
    for update in range(1, 7):
        before = {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}
        temperature = made.net.log_temperature.item()
        data = drawn(BOX, 1, 8, update)
        made.step(batch(data))
        turn = update % delay == 0
        assert (made.net.log_temperature.item() != temperature) == turn
        for name, part in parts.items():
            moved = {
                key for key, x in part.state_dict().items() if not torch.equal(x, before[name][key])
            }
            assert bool(moved) == (turn or name == "critic")
            assert (
                not moved
                or {
                    key
                    for key in before[name]
                    if key.rpartition(".")[2] in ("mean", "var", "batches")
                }
                <= moved
            )
        if turn:  # the first norm of the actor saw the observations
            key = "body.norms.0.mean"
            wanted = before["actor"][key] + MOMENTUM * (data.obs[0].mean(0) - before["actor"][key])
            torch.testing.assert_close(made.net.actor.state_dict()[key], wanted)


def test_a_learner_that_was_loaded_goes_on_to_the_same_bits() -> None:
    algorithm = CrossQ(**SMALL)
    one, other = (
        Learner(algorithm, make(algorithm, seed), schedule_updates=9, seed=0, batch=8)
        for seed in (0, 1)
    )
    for update in range(4):
        one.step(batch(drawn(BOX, 1, 8, update)))
    other.load(copy.deepcopy(one.state()))
    for update in range(4, 9):
        for made in (one, other):
            made.step(batch(drawn(BOX, 1, 8, update)))
    assert all(torch.equal(x, other.params()[name]) for name, x in one.params().items())


@pytest.mark.thorough
def test_it_learns_a_bandit() -> None:
    action = torch.rand(1, 256, 1, generator=generator()) * 4 - 1
    data = trajectory(
        torch.randn(2, 256, 1, generator=generator(1)),
        action,
        -((action[..., 0] - 2.0) ** 2),
        bootstrap=np.zeros((1, 256), bool),
    )
    spec = EnvSpec(
        observation=spaces.Box(-1.0, 1.0, (1,), np.float32),
        action=spaces.Box(-1.0, 3.0, (1,), np.float32),
    )
    algorithm = replace(
        CrossQ(hidden=(32,), critic_hidden=(64,), target_entropy=-1.0), temperature=0.1
    )
    net = trained(algorithm, spec, batch(data), 1500, learning_rate=3e-3)
    best = algorithm.best(net, torch.zeros(5, 1), torch.zeros(5, dtype=torch.bool), {})[0]
    assert best.flatten().tolist() == pytest.approx([2.0] * 5, abs=0.25)
