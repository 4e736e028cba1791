"""Catch as a screen of bytes [40, 40, 1]: the smallest game that a CNN can learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from equipoise.envs.toys.catch import CatchVector


class PixelCatch(CatchVector):
    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs)
        self.single_observation_space: Any = spaces.Box(0, 255, (40, 40, 1), np.uint8)
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def _board(self) -> Any:
        board = super()._board().reshape(self.num_envs, self.rows, self.columns)
        return (board.repeat(4, 1).repeat(8, 2)[..., None] * 255).astype(np.uint8)
