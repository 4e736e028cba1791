"""CartPole whose velocities are hidden: what is needed must be remembered."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Masked(gymnasium.ObservationWrapper[Any, Any, Any]):
    """obs: position and angle."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        box: Any = env.observation_space
        self.observation_space = gymnasium.spaces.Box(
            box.low[[0, 2]], box.high[[0, 2]], dtype=np.float32
        )

    def observation(self, observation: Any) -> Any:
        return observation[[0, 2]]


def masked_cartpole() -> gymnasium.Env[Any, Any]:
    return Masked(gymnasium.make("CartPole-v1", disable_env_checker=True))
