"""Rooms: a grid state of four rooms (Sutton, Precup & Singh 1999), with a new start and a new goal
in each episode.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from equipoise.device_envs.episodic import Episodic
from equipoise.types import Tree

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left, as (rows, columns)
STEP = 0.01  # the cost of a step; the goal gives 1


class Rooms(Episodic):
    """Walk to the goal; walls stop. An observation is two cells' numbers: the walker and the goal.

    The state is [B, 2] int64, the same two numbers.
    """

    draws: ClassVar[int] = 2

    def __init__(self, size: int = 9, max_episode_steps: int = 100) -> None:
        """``size``: cells of a side; odd, since a wall goes through the middle."""
        if size < 5 or size % 2 == 0:
            raise ValueError(f"size: expected an odd number of at least 5, got {size}")
        wall = np.zeros((size, size), bool)
        middle, doors = size // 2, (size // 4, size - 1 - size // 4)
        wall[middle], wall[:, middle] = True, True
        for door in doors:
            wall[middle, door] = wall[door, middle] = False
        self.wall, self.max_episode_steps = wall, max_episode_steps
        self.observation, self.action = (
            spaces.MultiDiscrete([size * size] * 2),
            spaces.Discrete(len(MOVES)),
        )
        self._free = torch.from_numpy(np.flatnonzero(~wall))  # [n] cells
        # [cells, 4]
        self._next = torch.tensor(
            [self._moves(row, column) for row in range(size) for column in range(size)]
        )

    def _moves(self, row: int, column: int) -> list[int]:
        """The cells that each move leads to."""
        size, found = len(self.wall), []
        for down, right in MOVES:
            y, x = row + down, column + right
            stays = not (0 <= y < size and 0 <= x < size) or self.wall[y, x]
            found.append(row * size + column if stays else y * size + x)
        return found

    def begin(self, u: Tensor) -> Tree:
        self._free = self._free.to(u.device)
        count = len(self._free)
        start = (u[:, 0] * count).long().clamp(max=count - 1)
        apart = 1 + (u[:, 1] * (count - 1)).long().clamp(max=count - 2)  # the goal is another cell
        return self._free[torch.stack([start, (start + apart) % count], -1)]

    def advance(self, state: Tree, action: Tree) -> tuple[Tree, Tensor, Tensor]:
        self._next = self._next.to(state.device)
        walker, goal = self._next[state[:, 0], action], state[:, 1]
        there = walker == goal
        return torch.stack([walker, goal], -1), there.float() - STEP, there

    def observe(self, state: Tree) -> Tree:
        return state
