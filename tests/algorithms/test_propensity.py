"""Propensities: how often ``act`` chooses what it says it does, by drawing often; a closed form
where there is one.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from equipoise import tree
from equipoise.exporting.observations import sampled
from tests.artifacts import untrained
from tests.exporting.cases import CASES, GRU, LATER, LSTM, MANY, SHIFTED, THREE, Case, masked, of

DRAWS = 40_000
LINE = spaces.Box(np.array([-1.0], np.float32), np.array([3.0], np.float32))
SOME = {"epsilon": 0.3, "epsilon_steps": 0}


class Drawn:
    """A policy in one state, asked often."""

    def __init__(self, case: Case, draws: int = DRAWS) -> None:
        one, policy = untrained(*case)
        self.algorithm, self.net, self.space = one.algorithm, policy.net, one.spec.action
        with torch.no_grad():
            for parameter in self.net.parameters():
                parameter.add_(
                    0.1
                    * torch.randn(
                        parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())
                    )
                )
        rng = np.random.default_rng(4)
        seen = sampled(one.spec, self.net, rows=16, seed=2).obs
        masks = tree.leaves(seen["action_mask"]) if one.spec.mask else []
        free = masks[0][0].reshape(16, -1) if len(masks) == 1 else np.zeros((16, 1))
        # where several actions are allowed, and one is not
        row = int(np.where(free.all(1), 0, free.sum(1)).argmax())
        obs = tree.map(
            lambda x: torch.from_numpy(
                x[0, row : row + 1] / 10 if x.dtype.kind == "f" else x[0, row : row + 1]
            ),
            seen,
        )
        state = tree.map(lambda x: x + 0.5, self.net.initial_state(1))
        self._row = obs, state, self.algorithm.explore(np.arange(1), 1, LATER)
        noise = torch.from_numpy(rng.random((draws, policy.noise.columns), np.float32)).clamp(
            2**-24, 1 - 2**-24
        )
        with torch.no_grad():
            self.action, self.behaviour, _ = self.algorithm.act(
                self.net, **self._given(draws), noise=noise
            )

    def _given(self, count: int) -> dict[str, Any]:
        obs, state, explore = (
            tree.map(lambda x: x.expand(count, *x.shape[1:]), one) for one in self._row
        )
        return {
            "obs": obs,
            "first": torch.zeros(count, dtype=torch.bool),
            "state": state,
            "explore": explore,
        }

    def logp(self, action: Any) -> Any:
        """The log propensities [n] of actions [n, ...]."""
        given = self._given(len(tree.leaves(action)[0]))
        with torch.no_grad():
            found = self.algorithm.propensity(self.net, action=action, **given)
        return None if found is None else found.numpy()


CHOICES: dict[str, Case] = {
    "r2d2 masked": ("r2d2", LSTM | {"epsilon": 0.3}, masked(SHIFTED, spaces.MultiBinary(3))),
    "sac masked": ("sac", {}, masked(SHIFTED, spaces.MultiBinary(3))),
    "dqn": ("dqn", SOME, of(SHIFTED)),
    "dqn masked": ("dqn", SOME, masked(THREE, spaces.MultiBinary(3))),
    "dqn c51": ("dqn", SOME | {"distribution": "c51"}, of(THREE)),
    "qr_dqn": ("qr_dqn", SOME, of(THREE)),
    "apex_dqn": ("apex_dqn", SOME, of(THREE)),
    "r2d2": ("r2d2", GRU | {"epsilon": 0.3}, of(THREE)),
    "sac at random, masked": (
        "sac",
        {"random_steps": LATER + 1},
        masked(SHIFTED, spaces.MultiBinary(3)),
    ),
    "ppo": ("ppo", LSTM, of(SHIFTED)),
    "bc": ("bc", {}, of(SHIFTED)),
    "appo, several choices, masked": ("appo", {}, masked(MANY, spaces.MultiBinary(9))),
    "impala, bits": ("impala", {}, of(spaces.MultiBinary(3))),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", CHOICES)
def test_a_probability_is_how_often_an_action_is_chosen(name: str) -> None:
    drawn = Drawn(CHOICES[name])
    space, action = drawn.space, drawn.action.numpy()
    if isinstance(space, spaces.Discrete):
        known = np.arange(space.start, space.start + space.n)
    elif isinstance(space, spaces.MultiDiscrete):
        known = np.array(
            list(
                itertools.product(
                    *(range(s, s + n) for s, n in zip(space.start, space.nvec, strict=True))
                )
            )
        )
    else:
        known = np.array(list(itertools.product((0, 1), repeat=3)), np.int8)
    p = np.exp(drawn.logp(torch.from_numpy(known)))
    often = np.array([np.mean((action == one).reshape(DRAWS, -1).all(1)) for one in known])
    np.testing.assert_allclose(p.sum(), 1.0, atol=1e-5)
    np.testing.assert_allclose(often, p, atol=4 * 0.5 / DRAWS**0.5)
    assert ((p > 0) == (often > 0)).all() or p[often == 0].max() < 1e-3
    assert 0.05 < p.max() < 1 or "bits" in name  # something was drawn


LINES: dict[str, Case] = {
    "td3, clipped often": ("td3", {"noise": 0.9}, of(LINE)),
    "sac": ("sac", {}, of(LINE)),
    "ppo": ("ppo", {"log_std": -0.5}, of(LINE)),
    "td3": ("td3", {"noise": 0.1}, of(LINE)),
    "td3 at random": ("td3", {"random_steps": LATER + 1}, of(LINE)),
    "sac at random": ("sac", {"random_steps": LATER + 1}, of(LINE)),
    "sac with noise of the state": (
        "sac",
        {"sde_every": 4, "sde_log_std": -1.0, "hidden": [16]},
        of(LINE),
    ),
    "tqc": ("tqc", {}, of(LINE)),
    "crossq": ("crossq", {"critic_hidden": [8]}, of(LINE)),
    "squashed ppo": ("ppo", {"squash": True, "log_std": -0.5}, of(LINE)),
    "ppo with noise of the state": ("ppo", {"sde_every": 4, "hidden": [8]}, of(LINE)),
    "bc": ("bc", {"squash": True}, of(LINE)),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", LINES)
def test_a_density_is_how_often_an_action_is_near(name: str) -> None:
    """Its integral, with what is clipped to a bound counted there, is 1; over a part it is the
    share of draws there.
    """
    drawn = Drawn(LINES[name])
    action = drawn.action.numpy()[:, 0].astype(np.float64)
    low, high = (-1.0, 3.0) if not name.startswith("ppo") else (-60.0, 60.0)
    cells = 200_000
    edges = np.linspace(low, high, cells + 1)
    middle = torch.from_numpy(((edges[1:] + edges[:-1]) / 2).astype(np.float32)[:, None])
    within = np.exp(drawn.logp(middle)) * np.diff(edges)
    on = (
        np.exp(drawn.logp(torch.tensor([[low], [high]])))
        if name.startswith("td3") and "random" not in name
        else np.zeros(2)
    )
    np.testing.assert_allclose(within.sum() + on.sum(), 1.0, atol=2e-3)
    close = 4 * 0.5 / DRAWS**0.5 + 2e-3
    if on.any():
        np.testing.assert_allclose(
            [(action <= low + 1e-5).mean(), (action >= high - 1e-5).mean()], on, atol=close
        )
    for at in np.quantile(action, [0.1, 0.3, 0.5, 0.7, 0.9]):
        if low + 1e-3 < at < high - 1e-3:
            np.testing.assert_allclose(
                (action <= at).mean(), on[0] + within[edges[1:] <= at].sum(), atol=close
            )


@pytest.mark.parametrize(
    "name",
    [name for name, case in CASES.items() if case[0] in ("ppo", "a2c", "a3c", "appo", "impala")],
)
def test_it_is_the_log_probability_that_the_actor_writes_down(name: str) -> None:
    drawn = Drawn(CASES[name], draws=200)
    np.testing.assert_allclose(
        drawn.logp(drawn.action), drawn.behaviour["logp"].numpy(), atol=2e-4, rtol=1e-4
    )


def test_what_is_not_drawn_has_none() -> None:
    drawn = Drawn(CASES["td3 without noise"], draws=10)
    assert drawn.logp(drawn.action) is None


def test_the_tail_of_a_clipped_action_in_closed_form() -> None:
    """mu = 0.5, std 0.25 of half a Box: P(x > 1) = 1 - Phi(2), P(x < -1) = Phi(-6), and a density
    in the env's units.
    """
    from equipoise.nets.actor import Bounds

    bounds, mean = Bounds(LINE, "td3"), torch.full((3, 1), 0.5)
    logp = bounds.clipped_logp(mean, 0.25, torch.tensor([[3.0], [-1.0], [2.0]])).numpy()
    wanted = [
        np.log(0.022750131948),
        np.log(9.865876450e-10),
        -0.5 * np.log(2 * np.pi) - np.log(0.25) - np.log(2.0),
    ]
    np.testing.assert_allclose(logp, wanted, rtol=1e-5)
