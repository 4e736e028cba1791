"""CartPole whose observations are large: what is learned from them is learned from rows with memory
of their own.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

TIMES = 75  # 1,200 bytes


class Wide(gymnasium.ObservationWrapper[Any, Any, Any]):
    snapshot_attributes: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.observation_space = spaces.Box(-np.inf, np.inf, (4 * TIMES,), np.float32)

    def observation(self, observation: Any) -> Any:
        return np.tile(observation, TIMES)
