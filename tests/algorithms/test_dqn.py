"""DQN against naive loops: double, Huber, the projection of c51, quantile regression, epsilon; and
a chain that it solves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from equipoise.algorithms.dqn import DQN, project, quantile_huber
from equipoise.types import EnvSpec
from tests.algorithms.items import (
    DISCRETE,
    batch,
    drawn,
    learn,
    network,
    target,
    trained,
    trajectory,
)

SMALL: dict[str, Any] = {"hidden": (16,), "gamma": 0.9}


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("dueling", [True, False])
def test_double_asks_the_one_network_and_believes_the_other(double: bool, dueling: bool) -> None:
    algorithm = DQN(double=double, dueling=dueling, **SMALL)
    net, target_net = network(algorithm, DISCRETE, 0), network(algorithm, DISCRETE, 1)
    data = drawn(DISCRETE, 1, 50, 0)
    with torch.no_grad():
        mine, its = net(data.obs[1])[..., 0], target_net(data.obs[1])[..., 0]
    assert (mine.argmax(-1) != its.argmax(-1)).sum() > 10
    for i in range(50):
        q = its[i][mine[i].argmax()] if double else its[i].max()
        expected = data.reward[0, i] + (0.9 * q if data.bootstrap[0, i] else 0.0)
        got = target(algorithm, net, target_net, data)["target"][i, 0]
        assert got.item() == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("error", ["huber", "mse"])
def test_the_error_is_half_a_square_and_a_hubers_slope_is_at_most_one(error: Any) -> None:
    algorithm = DQN(error=error, gamma=0.0, hidden=(16,))
    net = network(algorithm, DISCRETE, 0)
    reward = torch.linspace(-5, 5, 21)[None]
    data = trajectory(torch.zeros(2, 21, 3), torch.full((1, 21), 2), reward)
    with torch.no_grad():
        u = (reward[0] - net(data.obs[0])[:, 0, 0]).numpy()
    expected = u**2 / 2 if error == "mse" else np.where(np.abs(u) < 1, u**2 / 2, np.abs(u) - 0.5)
    assert learn(algorithm, net, net, data, "all").loss.item() == pytest.approx(
        expected.sum(), rel=1e-5
    )


def naive_projection(returns: Any, p: Any, z: Any) -> Any:
    """Bellemare et al. 2017, algorithm 1, an atom at a time."""
    out, dz = np.zeros((len(returns), len(z))), z[1] - z[0]
    for i in range(len(returns)):
        for y, share in zip(returns[i], p[i], strict=True):
            b = min(max((y - z[0]) / dz, 0.0), len(z) - 1.0)
            low, high = int(np.floor(b)), int(np.ceil(b))
            if low == high:
                out[i, low] += share
            else:
                out[i, low] += share * (high - b)
                out[i, high] += share * (b - low)
    return out


@pytest.mark.parametrize("seed", range(5))
def test_the_projection_is_the_papers_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    z = np.linspace(-3.0, 5.0, 11)
    returns = np.where(
        rng.random((20, 11)) < 0.2, rng.choice(z, (20, 11)), rng.normal(1.0, 4.0, (20, 11))
    )
    p = rng.dirichlet(np.ones(11), 20)
    got = project(*(torch.from_numpy(x) for x in (returns, p, z)))
    np.testing.assert_allclose(got.numpy(), naive_projection(returns, p, z), atol=1e-12)
    np.testing.assert_allclose(got.sum(-1).numpy(), 1.0)


@pytest.mark.parametrize("kappa", [1.0, 0.5])
def test_the_quantile_loss_is_the_papers_loop(kappa: float) -> None:
    rng = np.random.default_rng(0)
    theta, wanted = rng.normal(size=(6, 5)), rng.normal(size=(6, 7)) * 2
    expected = np.zeros(6)
    for b in range(6):
        for i in range(5):
            for j in range(7):
                u, tau = wanted[b, j] - theta[b, i], (2 * i + 1) / 10
                huber = u**2 / 2 if abs(u) <= kappa else kappa * (abs(u) - kappa / 2)
                expected[b] += abs(tau - (u < 0)) * huber / kappa / 7
    np.testing.assert_allclose(
        quantile_huber(torch.from_numpy(theta), torch.from_numpy(wanted), kappa).numpy(), expected
    )


def test_the_quantile_loss_finds_quantiles() -> None:
    samples, theta = (
        torch.randn(1, 4001, generator=torch.Generator().manual_seed(0)),
        torch.zeros(1, 5, requires_grad=True),
    )
    optimizer = torch.optim.SGD([theta], lr=1.0)
    for _ in range(300):
        optimizer.zero_grad()
        quantile_huber(theta, samples, 1e-3).sum().backward()
        optimizer.step()
    expected = samples.quantile(torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9]))
    torch.testing.assert_close(theta.detach()[0], expected, atol=0.03, rtol=0)


def test_c51s_loss_is_the_cross_entropy_with_the_projection() -> None:
    algorithm = DQN(distribution="c51", atoms=11, v_min=-2.0, v_max=2.0, **SMALL)
    net, target_net = network(algorithm, DISCRETE, 0), network(algorithm, DISCRETE, 1)
    data = drawn(DISCRETE, 1, 20, 0)
    with torch.no_grad():
        best = algorithm.mean(net(data.obs[1])).argmax(-1)
        following = target_net(data.obs[1])[torch.arange(20), best].softmax(-1).numpy()
        logp = net(data.obs[0])[torch.arange(20), data.action[0] - 2].log_softmax(-1).numpy()
    z = np.linspace(-2.0, 2.0, 11)
    returns = data.reward[0].numpy()[:, None] + 0.9 * data.bootstrap[0].numpy()[:, None] * z
    expected = -(naive_projection(returns, following, z) * logp).sum()
    assert learn(algorithm, net, target_net, data, "all").loss.item() == pytest.approx(
        expected, rel=1e-5
    )


def test_epsilon_falls_linearly_and_is_the_share_of_random_actions() -> None:
    algorithm = DQN(epsilon_start=1.0, epsilon=0.1, epsilon_steps=1000, hidden=(16,))
    said = {
        step: algorithm.explore(np.arange(3), 3, step)["epsilon"] for step in (0, 500, 1000, 10**6)
    }
    assert {k: round(v[0].item(), 6) for k, v in said.items()} == {
        0: 1.0,
        500: 0.55,
        1000: 0.1,
        10**6: 0.1,
    }
    assert all(v.shape == (3,) for v in said.values())
    net = network(algorithm, DISCRETE, 0)
    obs, first = torch.zeros(20_000, 3), torch.zeros(20_000, dtype=torch.bool)
    noise = torch.rand(20_000, 2, generator=torch.Generator().manual_seed(0))
    action = algorithm.act(
        net, obs, first, {}, explore=algorithm.explore(np.arange(20_000), 20_000, 500), noise=noise
    )[0]
    counts = np.bincount(action.numpy() - 2, minlength=4) / 20_000
    expected = np.full(4, 0.55 / 4)
    expected[int(algorithm.best(net, obs[:1], first[:1], {})[0]) - 2] += 0.45
    np.testing.assert_allclose(counts, expected, atol=0.015)


def test_settings_of_c51_that_make_no_sense_are_refused() -> None:
    with pytest.raises(
        ValueError, match="v_min < v_max and two atoms or more, got v_min=1, v_max=-1, atoms=51"
    ):
        DQN(distribution="c51", v_min=1.0, v_max=-1.0).network(DISCRETE)


STATES = 5
CHAIN = EnvSpec(observation=spaces.Discrete(STATES), action=spaces.Discrete(2))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"double": False, "dueling": True},
        {"n_step": 3},
        {"distribution": "c51", "v_min": 0.0, "v_max": 1.0, "atoms": 21},
        {"distribution": "quantile", "quantiles": 4, "error": "mse"},
    ],
)
def test_it_learns_the_values_of_a_chain(options: Any) -> None:
    """Right goes on and left goes back; right in the last state gives 1 and ends. Every item of
    every pair, at once.
    """
    rows = options.get("n_step", 1)
    items = [(s, a) for s in range(STATES) for a in range(2)]
    obs, action = np.zeros((rows + 1, len(items)), np.int64), np.ones((rows, len(items)), np.int64)
    reward, mask, bootstrap = (
        np.zeros((rows, len(items))),
        np.ones((rows, len(items)), bool),
        np.ones((rows, len(items)), bool),
    )
    for i, (s, a) in enumerate(items):
        over = False
        for t in range(rows):
            obs[t, i], done = s, (a if t == 0 else 1)
            action[t, i] = done
            if over:
                mask[t, i], over, s = False, False, 0
            elif done and s == STATES - 1:
                reward[t, i], bootstrap[t, i], over = 1.0, False, True
            else:
                s = s + 1 if done else max(s - 1, 0)
            obs[t + 1, i] = s
    data = trajectory(
        torch.from_numpy(obs), torch.from_numpy(action), reward, mask=mask, bootstrap=bootstrap
    )
    algorithm = DQN(hidden=(64,), gamma=0.9, target_every=5, **options)
    net = trained(algorithm, CHAIN, batch(data), 1500, learning_rate=3e-3)
    with torch.no_grad():
        q = algorithm.mean(net(torch.arange(STATES)))
        best, _ = algorithm.best(
            net, torch.arange(STATES), torch.zeros(STATES, dtype=torch.bool), {}
        )
    assert best.tolist() == [1] * STATES
    np.testing.assert_allclose(q[:, 1].numpy(), 0.9 ** np.arange(STATES - 1, -1, -1), atol=0.05)
