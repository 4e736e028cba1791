"""CartPole and Pendulum on tensors do what Gymnasium's do, step by step."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from equipoise.device_envs.cartpole import CartPole
from equipoise.device_envs.pendulum import Pendulum

STEPS = [1_000, pytest.param(10_000, marks=pytest.mark.thorough)]


@pytest.mark.parametrize("steps", STEPS)
def test_cartpole_equals_gymnasiums(steps: int) -> None:
    """Both run freely, each in float64; only the random states of resets are taken over."""
    env: Any = CartPoleVectorEnv(num_envs=4, max_episode_steps=60)
    ours = CartPole(max_episode_steps=60, dtype=torch.float64)
    obs, _ = env.reset(seed=0)
    state, ts = ours.reset(0, torch.arange(4))
    state["inner"] = torch.from_numpy(env.state.T.copy())
    rng, ends, cuts = np.random.default_rng(0), 0, 0
    for _ in range(steps):
        angle, turn = env.state[2], env.state[3]
        action = np.where(
            rng.random(4) < 0.5, rng.integers(0, 2, 4), (angle + turn > 0).astype(np.int64)
        )
        seam = state["done"].clone()
        obs, reward, terminated, truncated, _ = env.step(action)
        state, ts = ours.step(state, torch.from_numpy(action))
        if seam.any():
            state["inner"][seam] = torch.from_numpy(env.state.T.copy())[seam]
        np.testing.assert_allclose(state["inner"].numpy(), env.state.T, rtol=0, atol=1e-6)
        running = ~seam.numpy()
        np.testing.assert_allclose(ts.obs.numpy()[running], obs[running], rtol=0, atol=1e-6)
        assert np.array_equal(ts.reward.numpy(), reward)
        assert np.array_equal(ts.terminated.numpy(), terminated) and np.array_equal(
            ts.truncated.numpy(), truncated
        )
        assert np.array_equal(ts.first.numpy(), seam.numpy()) and np.array_equal(
            ts.valid.numpy(), running
        )
        ends, cuts = ends + terminated.sum(), cuts + truncated.sum()
    assert ends > steps / 200 and cuts > steps / 2000, (ends, cuts)


@pytest.mark.parametrize("steps", STEPS)
def test_pendulum_equals_gymnasiums(steps: int) -> None:
    env: Any = gymnasium.make("Pendulum-v1")
    ours = Pendulum(dtype=torch.float64)
    env.reset(seed=0)
    state, _ = ours.reset(0, torch.arange(1))
    state["inner"] = torch.from_numpy(env.unwrapped.state)[None]
    rng, cuts = np.random.default_rng(0), 0
    for _ in range(steps):
        # Gymnasium rounds 3 times it to float32
        action = (rng.integers(-8, 9, 1) / 4).astype(np.float32)
        seam = bool(state["done"][0])
        state, ts = ours.step(state, torch.from_numpy(action)[None])
        if seam:
            env.reset()
            state["inner"] = torch.from_numpy(env.unwrapped.state)[None]
            continue
        obs, reward, _, truncated, _ = env.step(action)
        np.testing.assert_allclose(
            state["inner"].numpy()[0], env.unwrapped.state, rtol=0, atol=1e-6
        )
        np.testing.assert_allclose(ts.obs.numpy()[0], obs, rtol=0, atol=1e-6)
        assert (
            float(ts.reward[0]) == pytest.approx(reward, abs=1e-5)
            and bool(ts.truncated[0]) == truncated
        )
        cuts += truncated
    assert cuts >= steps // 201


@pytest.mark.parametrize("kind", [CartPole, Pendulum])
def test_float32_is_within_rounding_of_float64_in_a_step(kind: Any) -> None:
    coarse, fine, streams = kind(), kind(dtype=torch.float64), torch.arange(512)
    state, _ = fine.reset(0, streams)
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        action = torch.randint(0, 2, (512,), generator=generator)
        if kind is Pendulum:
            action = torch.rand(512, 1, generator=generator) * 4 - 2
        rough = coarse.step(state | {"inner": state["inner"].float()}, action)[0]["inner"]
        state, _ = fine.step(state, action)
        torch.testing.assert_close(rough.double(), state["inner"], rtol=1e-5, atol=2e-6)
