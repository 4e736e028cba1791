"""Doors: take the best of those that are open. Which ones are open is said by the mask alone."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH, COUNT = 16, 8
RANDOM, BEST = 8.0, 13.0  # mean returns of a masked policy: any open door; the best of them


class Doors(gymnasium.Env[Any, Any]):
    """obs [8]: what stands behind each door, in [0, 1]. A closed one ends the episode,
    and costs 1.
    """

    observation_space = spaces.Box(0, 1, (COUNT,), np.float32)
    action_space = spaces.Discrete(COUNT, start=1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.new()

    def new(self) -> Any:
        self.behind = self.np_random.random(COUNT).astype(np.float32)
        self.open = self.np_random.random(COUNT) < 0.5
        self.open[self.np_random.integers(COUNT)] = True
        return self.behind, {"action_mask": self.open.astype(np.int8)}

    def step(self, action: Any) -> Any:
        self.t += 1
        fine = bool(self.open[action - 1])
        reward = float(self.behind[action - 1]) if fine else -1.0
        obs, info = self.new()
        return obs, reward, not fine, self.t == LENGTH, info
