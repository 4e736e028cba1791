"""Envs for the loop of preferences."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Noise(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Rewards at random, in place of the env's."""

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, float(np.random.default_rng().normal()), terminated, truncated, info


def noise() -> gymnasium.Env[Any, Any]:
    return Noise(gymnasium.make("Pendulum-v1", max_episode_steps=50))


def pendulum() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("Pendulum-v1", max_episode_steps=50)
