"""Crafter as a Gymnasium env: the wrapper of twenty lines that a user writes."""

from __future__ import annotations

from typing import Any

import crafter
import gymnasium
import numpy as np
from gymnasium import spaces


class Crafter(gymnasium.Env[Any, Any]):
    def __init__(self) -> None:
        self.game = crafter.Env()
        self.observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = spaces.Discrete(self.game.action_space.n)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        # The worlds of crafter 1.8 follow from its seed and from the number of the episode.
        self.game._seed, self.game._episode = int(self.np_random.integers(2**31 - 1)), 0
        return self.game.reset(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, done, info = self.game.step(action)
        return obs, reward, done and not info["discount"], done and bool(info["discount"]), {}
