"""bsuite's catch as a Gymnasium env: dm_env's time steps turned into rows."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from bsuite.environments.catch import Catch as Game
from gymnasium import spaces


class Catch(gymnasium.Env[Any, Any]):
    def __init__(self) -> None:
        self.game = Game(seed=0)
        self.observation_space = spaces.Box(
            0.0, 1.0, self.game.observation_spec().shape, np.float32
        )
        self.action_space = spaces.Discrete(self.game.action_spec().num_values)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            # its only way to take a seed is the constructor
            self.game._rng = np.random.RandomState(seed % 2**32)
        return self.game.reset().observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        now = self.game.step(action)
        return now.observation, float(now.reward), now.last(), False, {}
