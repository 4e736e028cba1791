"""Envs for the loop of preferences."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch


class Noise(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Rewards at random, in place of the env's."""

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, float(np.random.default_rng().normal()), terminated, truncated, info


def noise() -> gymnasium.Env[Any, Any]:
    return Noise(gymnasium.make("Pendulum-v1", max_episode_steps=50))


def pendulum() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("Pendulum-v1", max_episode_steps=50)


def leftness(obs: Any, action: Any) -> float:
    """How far to the left a pendulum is in a segment."""
    return float(-obs[:, 1].mean())


def nowhere(obs: Any, action: Any) -> float:
    return float("nan")


def leaves(obs: Any, action: Any) -> float:
    raise SystemExit(3)


def changes(obs: Any, action: Any) -> float:
    """``leftness``, by a function that also overwrites what it gets."""
    found = leftness(obs, action)
    obs[:], action[:] = 0.0, 0.0
    return found


def beyond(obs: Any, action: Any) -> int:
    return 10**5000


def tensor(obs: Any, action: Any) -> Any:
    return torch.zeros(3, requires_grad=True)


def unread(obs: Any, action: Any) -> float:
    raise OSError("no file of mine")


class Drawn(gymnasium.Env[Any, Any]):
    """Episodes of 11 rows; an observation and the red of its frame tell the row's number."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = gymnasium.spaces.Box(0.0, 20.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, render_mode: str | None = None, size: int = 300) -> None:
        self.render_mode, self._size, self._t, self._x = render_mode, size, 0, 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._t, self._x = 0, float(self.np_random.uniform(0, 10))
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._t, self._x = self._t + 1, float(np.clip(self._x + action[0], 0, 20))
        return self._seen(), -abs(self._x - 5), False, self._t == 11, {}

    def render(self) -> Any:
        return np.full((self._size, self._size + 100, 3), (20 * self._t, 0, 0), np.uint8)

    def _seen(self) -> Any:
        return np.array([self._t, self._x], np.float32)
