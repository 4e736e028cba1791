"""The built-in bonuses: counts, and random network distillation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from equipoise.algorithms.dqn import DQN
from equipoise.algorithms.ppo import PPO
from equipoise.learners.pool import ALONE
from equipoise.rewards.observed import reached, some_rows
from equipoise.rewards.return_norm import ReturnNorm
from equipoise.rewards.rnd import CLIP
from equipoise.rewards.terms import BUILT_IN, built
from equipoise.types import EnvSpec, Rewards, Trajectory
from tests.algorithms.items import DISCRETE, drawn, trajectory
from tests.rewards.test_terms import batches, learn, learner

pytestmark = pytest.mark.usefixtures("one_thread")


def term(name: str, spec: EnvSpec = DISCRETE, algorithm: Any = None, **settings: Any) -> Any:
    rewards = Rewards(sum=name, terms={name: settings})
    return built(rewards, algorithm or PPO(), spec, 5)[name]


def rows(observations: Any, spaces_of: Any) -> tuple[Trajectory, EnvSpec]:
    """A window [T, 1] of one stream, and its spec."""
    obs = torch.as_tensor(observations).unsqueeze(1)
    count = len(obs) - 1
    data = trajectory(obs, torch.zeros(count, 1, dtype=torch.int64), np.zeros((count, 1)))
    return data, EnvSpec(observation=spaces_of, action=spaces.Discrete(2))


# ------------------------------------------------------------------------------------------ counts


@pytest.mark.parametrize(
    ("space", "observations"),
    [
        (spaces.Discrete(5, start=2), [2, 3, 3, 6, 3, 3]),
        (
            spaces.MultiDiscrete([3, 4], start=[1, 0]),
            [[1, 0], [2, 3], [2, 3], [3, 1], [2, 3], [2, 3]],
        ),
        (spaces.MultiBinary(3), [[0, 0, 0], [0, 1, 0], [0, 1, 0], [1, 1, 0], [0, 1, 0], [0, 1, 0]]),
    ],
)
def test_small_discrete_observations_are_counted_exactly(space: Any, observations: Any) -> None:
    data, spec = rows(np.array(observations, np.int64), space)
    counts = term("counts", spec)
    assert counts.rewards(data).flatten().tolist() == [1.0] * 5, "none has come yet"
    counts.absorb(data, ALONE)
    bonus = counts.rewards(data).flatten().tolist()
    assert bonus == pytest.approx([0.5, 0.5, 1.0, 0.5, 0.5]) and int(counts.counts.sum()) == 5
    assert (
        len(counts.counts)
        == {"Discrete": 5, "MultiDiscrete": 12, "MultiBinary": 8}[type(space).__name__]
    )


def test_hashes_tell_different_observations_apart_and_near_ones_do_not() -> None:
    one = np.array([[0.1, -0.9, 0.5], [-0.7, 0.2, -0.1], [-0.7, 0.2, -0.1001], [0.9, 0.9, -0.9]])
    data, spec = rows(one.astype(np.float32), DISCRETE.observation)
    counts = term("counts", spec, bits=12)
    a, b, c = counts._values(data).flatten().tolist()
    assert a == b != c and len(counts.counts) == 1 << 12
    # all values above zero: without the bounds' middle nearly all hashes would be one
    high = replace(spec, observation=spaces.Box(10.0, 12.0, (3,), np.float32))
    moved, _ = rows((one + 11).astype(np.float32), high.observation)
    assert term("counts", high, bits=12)._values(moved).flatten().tolist() == [a, b, c]


def test_the_start_of_another_episode_was_not_reached() -> None:
    data, spec = rows(np.array([0, 1, 0, 1, 0], np.int64), spaces.Discrete(3))
    first = data.first.clone()
    first[2] = True  # an env that resets in the same step: row 1 ended, obs[2] begins another
    mask = data.mask.clone()
    mask[2] = False
    data = replace(data, first=first, mask=mask)
    assert reached(data).flatten().tolist() == [True, False, False, True]
    counts = term("counts", spec)
    counts.absorb(data, ALONE)
    assert counts.counts.tolist() == [1, 1, 0]
    assert counts.rewards(data).flatten().tolist() == [1.0, 0.0, 0.0, 1.0]


# --------------------------------------------------------------------------------------------- rnd


def along_time(errors: np.ndarray[Any, Any], gamma: float) -> np.ndarray[Any, Any]:
    """The forward filter of the paper's code, for rewards [T, B]: it never ends."""
    found, so_far = [], np.zeros(errors.shape[1])
    for row in errors:
        so_far = gamma * so_far + row
        found.append(so_far)
    return np.array(found)


def across_envs(errors: np.ndarray[Any, Any], gamma: float) -> np.ndarray[Any, Any]:
    """The same with CleanRL's mistake: the filter runs over envs in place of time."""
    return along_time(errors.T, gamma).T


def scales_as(norm: Callable[[Tensor], Tensor], returns: np.ndarray[Any, Any]) -> bool:
    one = torch.ones(1)
    return bool(np.isclose(float(norm(one)), 1 / np.sqrt(returns.var() + 1e-8), rtol=1e-5))


def test_the_bonus_is_scaled_by_the_filter_along_time() -> None:
    rng = np.random.default_rng(0)
    errors = rng.gamma(1.0, size=(24, 6)).astype(np.float32)
    norm = ReturnNorm(clip=float("inf"), episodic=False)
    for at in range(0, 24, 8):  # three windows of eight rows of each stream
        part = errors[at : at + 8]
        data = trajectory(torch.zeros(9, 6, 3), torch.zeros(8, 6, dtype=torch.int64), part)
        start = torch.full((6,), at)
        first = torch.rand(9, 6) < 0.3  # ends of episodes change nothing
        data = replace(data, first=first, context={"stream": torch.arange(6), "start": start})
        norm.absorb(data, 0.99, ALONE)
    assert scales_as(norm.scale, along_time(errors, 0.99))
    assert not scales_as(norm.scale, across_envs(errors, 0.99)), "the mistake would be seen"


def test_rnd_scales_its_errors_by_that_filter() -> None:
    made, given = term("rnd", warmup=0), batches(4)
    returns, whole = np.zeros(8), list[Any]()
    made.absorb(given[0].data, ALONE)
    for one in given[1:]:
        data = replace(one.data, mask=torch.ones_like(one.data.mask))
        made.rewards(data)
        errors = made._errors.detach().numpy()
        for row in errors:
            returns = 0.99 * returns + row
            whole.append(returns)
        made.absorb(data, ALONE)
    assert scales_as(made._scale.scale, np.array(whole))
    assert not scales_as(made._scale.scale, across_envs(np.array(whole), 0.99))


def test_there_is_no_bonus_before_the_first_statistics_and_the_first_step() -> None:
    given = batches(6)
    made = learner("env+rnd")  # of at least 8 rows: the first batch has them
    rnd: Any = made.terms["rnd"]
    bonus = []
    for one in given:
        step = made.step(one)
        total, _ = step.metrics["reward_rnd"]
        bonus.append(float(total))
    assert bonus[:2] == [0.0, 0.0] and min(bonus[2:]) > 0.0 and rnd._taken == 20
    late: Any = term("rnd", warmup=10**6)
    late.absorb(given[0].data, ALONE)
    assert late.loss(given[0].data) is None and not late.rewards(given[0].data).any()


def test_observations_are_whitened_and_clipped() -> None:
    made = term("rnd", warmup=0)
    data = replace(drawn(DISCRETE, 64, 8, 0), obs=torch.randn(65, 8, 3) * 40 + 1000)
    made.absorb(data, ALONE)
    found = made._norm(made._observed.rows(data.obs)[1:])
    assert abs(float(found.mean())) < 0.1 and float(found.std()) == pytest.approx(1.0, abs=0.1)
    far = replace(data, obs=data.obs + 1e6)
    assert float(made._norm(far.obs[1:]).max()) == CLIP == 5.0


def test_the_bonus_of_what_is_seen_again_falls() -> None:
    given = batches(1)
    made = learner("env+rnd")
    rnd: Any = made.terms["rnd"]
    learn(made, given * 3)
    before = rnd.net(rnd._norm(given[0].data.obs[1:])).mean()
    learn(made, given * 60)
    assert rnd.net(rnd._norm(given[0].data.obs[1:])).mean() < 0.8 * before
    assert torch.equal(
        rnd.net.target[1].weight, term("rnd", features=4, hidden=(8,)).net.target[1].weight
    ), "the target stays"


def test_the_rows_to_learn_from_are_the_same_for_any_number_of_learners() -> None:
    data = drawn(DISCRETE, 400, 8, 0)
    chosen = some_rows(data, 0.25, 3)
    assert 0.2 < chosen[data.mask].float().mean() < 0.3 and not chosen[~data.mask].any()
    half = replace(
        data,
        mask=data.mask[:, 4:],
        reward=data.reward[:, 4:],
        context={"stream": torch.arange(4, 8), "start": data.context["start"][4:]},
    )
    assert torch.equal(some_rows(half, 0.25, 3), chosen[:, 4:])
    assert not torch.equal(some_rows(data, 0.25, 4), chosen)
    assert some_rows(data, 1.0, 3).equal(data.mask)
    for axis in (0, 1):  # no row or stream is chosen always
        shares = chosen.float().mean(axis)
        assert shares.max() < 0.9 and shares.std() > 0


def test_a_replay_has_no_returns_along_time() -> None:
    assert term("rnd", algorithm=DQN())._discount == 0.0
    assert term("rnd")._discount == 0.99


SPACES = {
    "a screen": spaces.Box(0, 255, (4, 36, 36), np.uint8),
    "a number": spaces.Discrete(4, start=1),
    "parts": spaces.Dict(
        {"a": spaces.Box(-1, 1, (2, 2), np.float32), "b": spaces.MultiDiscrete([2, 3])}
    ),
}


SETTINGS: dict[str, dict[str, Any]] = {
    "counts": {"bits": 4},
    "episodic": {"bits": 4, "once": False},
    "rnd": {"warmup": 0},
    "icm": {"features": 8, "hidden": (8,)},
    "e3b": {"features": 8},
}


BONUSES = [name for name in BUILT_IN if name not in ("preferences", "gail")]  # which need data


@pytest.mark.parametrize("name", BONUSES)
@pytest.mark.parametrize("kind", SPACES)
def test_every_kind_of_observation_has_a_bonus(kind: str, name: str) -> None:
    space: Any = SPACES[kind]
    space.seed(0)
    several = [[space.sample() for _ in range(2)] for _ in range(5)]
    obs: Any = (
        {
            key: torch.as_tensor(np.array([[one[key] for one in row] for row in several]))
            for key in space.spaces
        }
        if isinstance(space, spaces.Dict)
        else torch.as_tensor(np.array(several))
    )
    data = trajectory(obs, torch.zeros(4, 2, dtype=torch.int64), np.zeros((4, 2)))
    spec = EnvSpec(observation=space, action=spaces.Discrete(2))
    made = term(name, spec, **SETTINGS.get(name, {}))
    bonus = made.rewards(data)
    for _ in range(3):
        bonus = made.rewards(data)
        if (out := made.loss(data)) is not None:
            out.loss.backward()
        made.absorb(data, ALONE)
    assert bonus.shape == (4, 2) and bonus.isfinite().all() and (bonus > 0).any()
