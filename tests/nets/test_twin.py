"""Twin critics are two critics; actors of a Box are the distributions that they say they are;
action values.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces

from equipoise.nets.actor import Bounds, GaussianActor, normal
from equipoise.nets.q import QNetwork, any_of, greedy
from equipoise.nets.twin import TwinCritic, TwinMLP
from equipoise.types import EnvSpec

SPEC = EnvSpec(
    observation=spaces.Box(-1.0, 1.0, (3,), np.float32),
    action=spaces.Box(-1.0, 1.0, (2,), np.float32),
)


@pytest.mark.parametrize("hidden", [(), (8,), (16, 8)])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("members", [2, 5])
def test_the_twins_are_separate_networks(
    hidden: tuple[int, ...], members: int, outputs: int
) -> None:
    torch.manual_seed(0)
    twins = TwinMLP(5, hidden, "relu", outputs, members=members)
    with torch.no_grad():
        for b in twins.biases:
            b.normal_()
    x = torch.randn(7, 5, requires_grad=True)
    got = twins(x)
    for member in range(members):
        y = x
        for n, (w, b) in enumerate(zip(twins.weights, twins.biases, strict=True)):
            y = F.linear(y, w[member].t(), b[member, 0])
            y = y.relu() if n < len(hidden) else y
        torch.testing.assert_close(got[member], y)
        mine, its = (
            torch.autograd.grad(one.sum(), [x, *twins.weights, *twins.biases], retain_graph=True)
            for one in (got[member], y)
        )
        for a, b in zip(mine, its, strict=True):
            torch.testing.assert_close(a, b)
    assert not torch.allclose(got[0], got[1])


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("hidden", [(), (16,), (16, 8, 8)])
@pytest.mark.parametrize("members", [1, 2])
def test_the_smaller_one_and_its_slope_are_autograds(
    activation: str, hidden: tuple[int, ...], members: int
) -> None:
    torch.manual_seed(0)
    critic = TwinCritic(SPEC, hidden=hidden, activation=activation, torso="auto", action_size=2)
    with torch.no_grad():
        for b in critic.twins.biases:
            b.normal_()
    obs, action = torch.randn(40, 3), torch.randn(40, 2, requires_grad=True)
    both, mine = critic(obs, action), critic.least(obs, action, members=members)
    x = torch.cat([obs, action], -1).detach()
    alike = [critic.twins.least(x, 2, members=members, select=select) for select in (True, False)]
    torch.testing.assert_close(alike[0], alike[1])
    one = both.amin(0) if members == 2 else both[0]
    assert members == 1 or len(both.argmin(0).unique()) == 2
    torch.testing.assert_close(mine, one)
    (expected,) = torch.autograd.grad((one * torch.arange(40)).sum(), action)
    (mine * torch.arange(40)).sum().backward()
    torch.testing.assert_close(action.grad, expected)
    assert all(p.grad is None for p in critic.parameters())


def test_a_squashed_gaussian_has_the_density_that_it_says() -> None:
    """Against a histogram, and against torch's own far out, in float64."""
    torch.manual_seed(0)
    actor = GaussianActor(SPEC, hidden=(8,), activation="relu", torso="auto", size=2)
    with torch.no_grad():
        actor.head.bias.copy_(torch.tensor([0.4, -0.2, -0.5, 0.3]))
        obs = torch.zeros(200_000, 3)
        action, logp = actor.sample(obs, torch.randn(200_000, 2))
        mean, log_std = (x[0].double() for x in actor(obs[:1]))
        for k in range(2):
            counts, edges = np.histogram(action[:, k].numpy(), bins=20, range=(-1, 1))
            x = torch.atanh(torch.from_numpy(edges).clamp(-1 + 1e-12, 1 - 1e-12))
            share = torch.distributions.Normal(mean[k], log_std[k].exp()).cdf(x).diff()
            np.testing.assert_allclose(counts / 200_000, share.numpy(), atol=0.004)
        z = torch.linspace(-3, 3, 13)[:, None].expand(13, 2)
        action, logp = actor.sample(obs[:13], z)
        x = mean + log_std.exp() * z.double()
        exact = (
            -0.5 * z.double() ** 2
            - log_std
            - 0.5 * math.log(2 * math.pi)
            - torch.log1p(-(x.tanh() ** 2))
        ).sum(-1)
    torch.testing.assert_close(logp.double(), exact, rtol=1e-4, atol=1e-4)


def test_bounds_there_and_back() -> None:
    bounds = Bounds(
        spaces.Box(np.array([[-2.0, 0.0]], np.float32), np.array([[2.0, 0.1]], np.float32)), "x"
    )
    a = torch.tensor([[-1.0, -1.0], [1.0, 1.0], [0.5, -0.25]])
    env = bounds.to_env(a)
    assert (
        env.shape == (3, 1, 2)
        and env[0].tolist() == [[-2.0, 0.0]]
        and env[1, 0, 1].item() == np.float32(0.1)
    )
    torch.testing.assert_close(bounds.from_env(env), a)
    assert bounds.from_env(torch.tensor([[[9.0, -9.0]]])).tolist() == [[1.0, -1.0]]


def test_no_rounding_leaves_the_bounds() -> None:
    rng = np.random.default_rng(0)
    low = rng.normal(size=5000).astype(np.float32)
    space = spaces.Box(low, low + rng.random(5000, np.float32) + np.float32(1e-3))
    bounds = Bounds(space, "x")
    assert all(
        space.contains(bounds.to_env(torch.full((1, 5000), end))[0].numpy()) for end in (-1.0, 1.0)
    )


def test_normal_noise_is_normal() -> None:
    u = torch.linspace(0.0005, 0.9995, 1000)
    torch.testing.assert_close(torch.special.ndtr(normal(u)), u)
    assert normal(torch.tensor([0.0, 1.0])).isfinite().all()


def test_dueling_values_are_the_states_on_average() -> None:
    spec = EnvSpec(observation=SPEC.observation, action=spaces.Discrete(4))
    torch.manual_seed(0)
    net = QNetwork(spec, hidden=(16,), activation="relu", torso="auto", dueling=True, bins=5)
    obs = torch.randn(6, 3)
    assert net.value_head is not None
    torch.testing.assert_close(net(obs).mean(1), net.value_head(net.features(obs)))
    advantage = net.head(net.features(obs)).view(6, 4, 5)
    torch.testing.assert_close(net(obs).diff(dim=1), advantage.diff(dim=1))


def test_any_of_is_fair_among_what_is_allowed() -> None:
    allowed = torch.tensor([True, False, True, True]).expand(30_000, 4)
    u = (torch.arange(30_000) + 0.5) / 30_000
    assert torch.bincount(any_of(u, 4, allowed), minlength=4).tolist() == [
        10_000,
        0,
        10_000,
        10_000,
    ]
    assert torch.bincount(any_of(u, 4, None), minlength=4).tolist() == [7_500] * 4
    ends = torch.tensor([2.0**-24, 1 - 2.0**-24])
    assert any_of(ends, 4, allowed[:2]).tolist() == any_of(ends, 4, None).tolist() == [0, 3]
    assert all(any_of(ends[1:], n, None).item() == n - 1 for n in range(1, 3000))
    assert greedy(torch.tensor([[1.0, 9.0, 3.0, 2.0]]), allowed[:1]).item() == 2
