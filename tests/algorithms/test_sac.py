"""SAC against its equations: targets, losses, temperature, who gets a gradient; and bandits that it
solves.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from equipoise.actors.playing import FixedPolicy, Playing, noise_of
from equipoise.algorithms.sac import SAC, policy
from equipoise.learners.learner import Learner
from equipoise.types import EnvSpec
from tests.algorithms.items import (
    BOX,
    DISCRETE,
    batch,
    drawn,
    generator,
    learn,
    masked,
    network,
    target,
    touched,
    trained,
    trajectory,
)

SMALL: dict[str, Any] = {"hidden": (16, 16), "gamma": 0.9}
ALPHA = 0.3


def pair(algorithm: SAC, spec: EnvSpec) -> tuple[Any, Any]:
    return network(algorithm, spec, 0), network(algorithm, spec, 1)


@pytest.mark.parametrize("with_mask", [False, True])
def test_discrete_targets_are_the_expectation_over_all_actions(with_mask: bool) -> None:
    algorithm, spec = SAC(temperature=ALPHA, **SMALL), masked(DISCRETE) if with_mask else DISCRETE
    net, target_net = pair(algorithm, spec)
    data = drawn(spec, 1, 30, 0)
    got = target(algorithm, net, target_net, data)
    obs = {k: v[1] for k, v in data.obs.items()} if with_mask else data.obs[1]
    allowed = obs["action_mask"].numpy() != 0 if with_mask else np.ones((30, 4), bool)
    with torch.no_grad():
        logits, q = net.actor.outputs(obs).double().numpy(), target_net.critic(obs).double().numpy()
    for i in range(30):
        mine = np.flatnonzero(allowed[i])
        p = np.exp(logits[i, mine]) / np.exp(logits[i, mine]).sum()
        value = sum(
            p[k] * (min(q[0, i, a], q[1, i, a]) - ALPHA * np.log(p[k])) for k, a in enumerate(mine)
        )
        expected = data.reward[0, i].item() + (0.9 * value if data.bootstrap[0, i] else 0.0)
        assert got["target"][i].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
        spare = -sum(p * np.log(p)) - 0.98 * np.log(len(mine))
        assert got["spare"][i].item() == pytest.approx(spare, rel=1e-4, abs=1e-5)


def test_discrete_actor_loss_is_the_expectation_and_its_optimum_the_softmax_of_q() -> None:
    algorithm = SAC(temperature=ALPHA, learn_temperature=False, **SMALL)
    net, target_net = pair(algorithm, DISCRETE)
    data = drawn(DISCRETE, 1, 10, 0)
    with torch.no_grad():
        p, q = (
            net.actor(data.obs[0])[0].double().softmax(-1).numpy(),
            net.critic(data.obs[0]).double().numpy(),
        )
    expected = sum(
        p[i, a] * (ALPHA * np.log(p[i, a]) - q[:, i, a].min()) for i in range(10) for a in range(4)
    )
    assert learn(algorithm, net, target_net, data, "actor").loss.item() == pytest.approx(
        expected, rel=1e-4
    )
    assert touched(net) == {"actor"}


def test_box_targets_and_losses_are_those_of_the_sampled_action() -> None:
    algorithm = SAC(temperature=ALPHA, **SMALL)
    net, target_net = pair(algorithm, BOX)
    data = drawn(BOX, 1, 30, 0)
    got = target(algorithm, net, target_net, data, seed=7)
    z = torch.randn(30, 2, generator=generator(7))
    with torch.no_grad():
        mean, log_std = net.actor(data.obs[1])
        x = torch.distributions.Normal(mean, log_std.exp())
        bent = torch.distributions.TransformedDistribution(x, torch.distributions.TanhTransform())
        action = (mean + log_std.exp() * z).tanh()
        logp = bent.log_prob(action).sum(-1)
        value = target_net.critic(data.obs[1], action).amin(0) - ALPHA * logp
        expected = data.reward[0] + 0.9 * data.bootstrap[0] * value
    torch.testing.assert_close(got["target"], expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got["spare"], -logp + 2.0, rtol=1e-4, atol=1e-3)

    out = learn(algorithm, net, target_net, data, "critic")
    wanted = target(algorithm, net, target_net, data)["target"]
    with torch.no_grad():
        scaled = torch.stack([data.action[0][:, 0] / 2, data.action[0][:, 1] * 2 - 1], -1)
        error = net.critic(data.obs[0], scaled) - wanted
    assert out.loss.item() == pytest.approx(0.5 * error.square().sum().item(), rel=1e-4)
    assert touched(net) == {"critic"}

    out = learn(algorithm, net, target_net, data, "actor")
    with torch.no_grad():
        action, logp = net.actor.sample(data.obs[0], torch.randn(30, 2, generator=generator(1)))
        expected = (ALPHA * logp - net.critic(data.obs[0], action).amin(0)).sum()
    assert out.loss.item() == pytest.approx(expected.item(), rel=1e-4)
    assert touched(net) == {"actor"}
    critics = {id(p) for p in net.critic.parameters()}
    assert critics.isdisjoint(id(p) for p in net.actor.parameters())


def test_the_actors_gradient_goes_through_the_smaller_critic() -> None:
    """By finite differences of the head's bias."""
    algorithm = SAC(temperature=ALPHA, activation="tanh", **SMALL)
    net, target_net = pair(algorithm, BOX)
    data = drawn(BOX, 1, 30, 0)
    z = torch.randn(30, 2, generator=generator(1))

    def loss() -> Any:
        action, logp = net.actor.sample(data.obs[0], z)
        return (ALPHA * logp - net.critic(data.obs[0], action).amin(0)).sum().item()

    learn(algorithm, net, target_net, data, "actor")
    bias = net.actor.head.bias
    for k in range(4):
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                bias[k] += sign * 3e-3
                values.append(loss())
                bias[k] -= sign * 3e-3
        assert bias.grad[k].item() == pytest.approx(
            (values[0] - values[1]) / 6e-3, rel=2e-2, abs=2e-2
        )


@pytest.mark.parametrize("spec", [BOX, DISCRETE])
@pytest.mark.parametrize(("aim", "rises"), [(-100.0, False), (100.0, True)])
def test_the_temperature_rises_where_entropy_is_short(
    spec: EnvSpec, aim: float, rises: bool
) -> None:
    algorithm = SAC(target_entropy=aim, **SMALL)
    net, target_net = pair(algorithm, spec)
    data = drawn(spec, 1, 30, 0)
    learn(algorithm, net, target_net, data, "temperature")
    assert touched(net) == {"log_temperature"} and bool(net.log_temperature.grad < 0) == rises
    spare = target(algorithm, net, target_net, data)["spare"]
    assert net.log_temperature.grad.item() == pytest.approx(spare.sum().item(), rel=1e-5)


def test_groups_and_what_the_target_follows() -> None:
    algorithm = SAC(**SMALL)
    net = network(algorithm, BOX, 0)
    groups = algorithm.groups(net)
    assert list(groups) == ["critic", "actor", "temperature"]
    assert sum(len(g) for g in groups.values()) == len(list(net.parameters()))
    fixed = SAC(learn_temperature=False, temperature=0.5, **SMALL)
    net = network(fixed, BOX, 0)
    assert (
        list(fixed.groups(net)) == ["critic", "actor"]
        and dict(net.named_buffers())["log_temperature"].exp().item() == 0.5
    )
    learner = Learner(algorithm, network(algorithm, BOX, 0), schedule_updates=10, seed=0, batch=8)
    before = [p.clone() for p in learner._target.net.parameters()]  # type: ignore[union-attr]
    out = learner.step(batch(drawn(BOX, 1, 8, 0)))
    assert out.priority is not None and out.priority.shape == (8,), (
        "of the critics, which come before the actor"
    )
    assert set(learner.state()["target"]) == {
        name.removeprefix("critic.") for name in learner.params() if "critic" in name
    }
    now = learner._target.net.parameters(), learner.net.critic.parameters()  # type: ignore[union-attr]
    for old, new, source in zip(before, *now, strict=True):
        torch.testing.assert_close(new, old + 0.005 * (source - old))


def test_random_at_first() -> None:
    algorithm = SAC(random_steps=100, **SMALL)
    net = network(algorithm, BOX, 0)
    with torch.no_grad():
        net.actor.head.weight.zero_()
        net.actor.head.bias.copy_(torch.tensor([3.0, -3.0, -20.0, -20.0]))
    obs, first, noise = (
        torch.zeros(4000, 3),
        torch.zeros(4000, dtype=torch.bool),
        torch.rand(4000, 3, generator=generator()),
    )
    spread = []
    for step in (99, 100):
        action = algorithm.act(
            net, obs, first, {}, explore=algorithm.explore(np.arange(4000), 4000, step), noise=noise
        )[0]
        spread.append((action.std(0) / torch.tensor([4.0, 1.0])).tolist())
    assert spread[0] == pytest.approx([1 / math.sqrt(12)] * 2, abs=0.01) and max(spread[1]) < 1e-3
    assert SAC(random_steps=0).explore(np.arange(3), 3, 0) == {}


def exploring(rows: int) -> tuple[SAC, Any, torch.Tensor]:
    """gSDE with four features and deviations that all differ; noise for so many rows."""
    algorithm = SAC(hidden=(16, 4), sde_every=5, random_steps=0)
    net = network(algorithm, BOX, 0)
    with torch.no_grad():
        net.actor.log_std.copy_(torch.linspace(-2.5, -1.0, 8).view(4, 2))
    return algorithm, net, torch.rand(rows, 2 + 4 * 2, generator=generator(3))


def test_noise_of_the_state_has_the_moments_of_the_formula_and_of_the_learner() -> None:
    """Two states seen under the same matrices: x is normal with the formula's variances and with
    their covariance.
    """
    draws = 100_000
    algorithm, net, noise = exploring(draws)
    states = torch.tensor([[0.5, -1.0, 2.0], [-0.3, 0.8, 1.0]])
    assert algorithm.held_noise(net) == (8, 5)
    seen = []
    with torch.no_grad():
        for state in states:
            obs, first = state.expand(draws, 3), torch.zeros(draws, dtype=torch.bool)
            action = algorithm.act(
                net,
                obs,
                first,
                {},
                explore=algorithm.explore(np.arange(draws), draws, 0),
                noise=noise,
            )[0]
            seen.append(net.bounds.from_env(action).double().atanh().numpy())
        h, sigma = (
            net.actor.latent(states).double().numpy(),
            net.actor.log_std.double().exp().numpy(),
        )
        mean, log_std = net.actor(states)
    assert (np.abs(h).sum(1) > 0.1).all(), "states whose noise is more than nothing"
    for i in range(2):
        for k in range(2):
            variance = sum(h[i, j] ** 2 * sigma[j, k] ** 2 for j in range(4))
            assert log_std[i, k].exp().item() ** 2 == pytest.approx(variance + 1e-6, rel=1e-4), (
                "the learner's"
            )
            x = (seen[i][:, k] - mean[i, k].item()) / variance**0.5
            assert [x.mean(), (x**2).mean(), (x**3).mean(), (x**4).mean()] == pytest.approx(
                [0, 1, 0, 3], abs=0.1
            )
    for k in range(2):
        covariance = sum(h[0, j] * h[1, j] * sigma[j, k] ** 2 for j in range(4))
        spread = seen[0][:, k].std() * seen[1][:, k].std()
        assert np.cov(seen[0][:, k], seen[1][:, k])[0, 1] == pytest.approx(
            covariance, abs=0.02 * spread
        )
    assert abs(np.corrcoef(seen[0].T)[0, 1]) < 0.02, "the dimensions of an action are independent"


def test_the_learner_moves_the_deviations_of_the_noise() -> None:
    algorithm = SAC(hidden=(16, 4), sde_every=5, temperature=ALPHA, gamma=0.9)
    net, target_net = pair(algorithm, BOX)
    data = drawn(BOX, 1, 30, 0)
    out = learn(algorithm, net, target_net, data, "actor")
    assert touched(net) == {"actor"} and net.actor.log_std.grad.any()
    with torch.no_grad():
        mean, log_std = net.actor(data.obs[0])
        z = torch.randn(30, 2, generator=generator(1))
        bent = torch.distributions.TransformedDistribution(
            torch.distributions.Normal(mean, log_std.exp()),
            torch.distributions.TanhTransform(cache_size=1),
        )
        action = (mean + log_std.exp() * z).tanh()
        logp = bent.log_prob(action).sum(-1)
        expected = (ALPHA * logp - net.critic(data.obs[0], action).amin(0)).sum()
    assert out.loss.item() == pytest.approx(expected.item(), rel=1e-3)


def test_noise_of_the_state_is_the_same_for_so_many_steps_and_then_another() -> None:
    """A policy that sees one state again and again acts alike within a period and not beyond it."""
    algorithm, net, _ = exploring(1)
    with torch.no_grad():
        net.actor.head.weight.zero_()
    policy = FixedPolicy(algorithm=algorithm, net=net, noise=noise_of(algorithm, net, BOX.action))
    playing = Playing(policy, np.arange(3), deterministic=False, seed=1, row=7)
    obs = np.tile(np.array([[0.5, -1.0, 2.0]], np.float32), (3, 1))
    actions = np.array([playing(obs, np.zeros(3, bool)) for _ in range(23)])  # rows 7 to 29
    for stream in range(3):
        changes = [
            7 + t for t in range(1, 23) if (actions[t, stream] != actions[t - 1, stream]).any()
        ]
        assert changes == [10, 15, 20, 25]
    assert len({tuple(action) for action in actions.reshape(-1, 2).tolist()}) == 3 * 5, (
        "each stream has its own"
    )


def test_state_dependent_noise_where_it_cannot_be() -> None:
    with pytest.raises(
        ValueError, match=r"algorithm\.sde_every: must be 0 unless actions are a Box, got 8"
    ):
        SAC(sde_every=8).network(DISCRETE)
    with pytest.raises(ValueError, match=r"algorithm\.sde_every: expected a hidden layer"):
        SAC(sde_every=8, hidden=()).network(BOX)


ONE = spaces.Box(-1.0, 1.0, (1,), np.float32)


def test_it_learns_a_discrete_bandit() -> None:
    """Of one step: the optimal policy at a fixed temperature is softmax(r / alpha)."""
    rewards = torch.tensor([0.0, 0.3, 0.6, 0.2])
    data = trajectory(
        torch.ones(2, 64, 1),
        (torch.arange(64) % 4)[None],
        rewards[torch.arange(64) % 4][None],
        bootstrap=np.zeros((1, 64), bool),
    )
    algorithm = SAC(hidden=(32,), temperature=ALPHA, learn_temperature=False)
    net = trained(
        algorithm,
        EnvSpec(observation=ONE, action=spaces.Discrete(4)),
        batch(data),
        300,
        learning_rate=1e-2,
    )
    p = policy(net.actor(torch.ones(1, 1))[0])[0][0].detach()
    torch.testing.assert_close(p, (rewards / ALPHA).softmax(-1), atol=0.02, rtol=0)


@pytest.mark.thorough
def test_it_learns_a_box_bandit_and_its_temperature_holds_the_entropy() -> None:
    action = torch.rand(1, 256, 1, generator=generator()) * 4 - 1  # from -1 to 3
    reward = -((action[..., 0] - 2.0) ** 2)
    data = trajectory(torch.ones(2, 256, 1), action, reward, bootstrap=np.zeros((1, 256), bool))
    algorithm = SAC(hidden=(64,), temperature=0.1, target_entropy=-1.0)
    spec = EnvSpec(observation=ONE, action=spaces.Box(-1.0, 3.0, (1,), np.float32))
    net = trained(algorithm, spec, batch(data), 700, learning_rate=5e-3)
    best = algorithm.best(net, torch.ones(1, 1), torch.zeros(1, dtype=torch.bool), {})[0]
    assert best.item() == pytest.approx(2.0, abs=0.15)
    _, logp = net.actor.sample(torch.ones(4000, 1), torch.randn(4000, 1, generator=generator()))
    assert -logp.mean().item() == pytest.approx(-1.0, abs=0.3)
