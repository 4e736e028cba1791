"""An env and a teacher for policies that learn from preferences (``feedback_control.py``)."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from equipoise.envs import Catch

CELL = (4, 8)  # pixels of a cell: a board of 10 x 5 is a screen of 40 x 40


class Screen(gymnasium.ObservationWrapper[NDArray[np.uint8], np.int64, NDArray[np.float32]]):
    """Catch from pixels [1, 40, 40]."""

    def __init__(self) -> None:
        super().__init__(Catch())
        self.observation_space = spaces.Box(0, 255, (1, 40, 40), np.uint8)

    def observation(self, observation: NDArray[np.float32]) -> NDArray[np.uint8]:
        board = (observation.reshape(10, 5) * 255).astype(np.uint8)
        return np.kron(board, np.ones(CELL, np.uint8))[None]


def catch() -> gymnasium.Env[NDArray[np.uint8], np.int64]:
    """Make Catch from pixels."""
    return Screen()


def turns(obs: NDArray[np.float32], action: object = None) -> float:
    """Return how often Pendulum turned over in observations [T, 3], the turns back subtracted."""
    angle = np.unwrap(np.arctan2(obs[:, 1], obs[:, 0]))
    return float(abs(angle[-1] - angle[0]) / (2 * math.pi))
