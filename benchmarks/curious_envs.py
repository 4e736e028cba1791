"""Envs of curiosity.py: rooms with a key along a corridor, and a room with a noisy television."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

EMPTY, WALL, CLOSED, LOCKED, KEY, BALL = range(6)
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
PICK, TOGGLE = 4, 5
VIEW = 2  # cells to each side


class KeyCorridor(gymnasium.Env[Any, Any]):
    """Take a ball from a locked room, whose key lies in another one, after KeyCorridor of MiniGrid.

    Rooms of 2 x 2 cells lie on both sides of a corridor, behind closed doors. Actions move in four
    directions, and face that way; take what is in front; and open a door in front. A reward of 1
    and the end: the ball is taken. ``layout``: of all episodes; None: each has its own.
    """

    def __init__(self, rooms: int = 3, layout: int | None = 0, limit: int = 120) -> None:
        self.rooms, self.limit, self.layout = rooms, limit, layout
        self.height, self.width = 3 * rooms + 1, 9
        self.observation_space = spaces.Dict(
            {
                "view": spaces.MultiDiscrete([6] * (2 * VIEW + 1) ** 2),
                "way": spaces.Discrete(4),  # the direction that the agent faces
                # row, column, has the key
                "place": spaces.MultiDiscrete([self.height, self.width, 2]),
            }
        )
        self.action_space = spaces.Discrete(6)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        rng = self.np_random if self.layout is None else np.random.default_rng(self.layout)
        self._grid = np.full((self.height + 2 * VIEW, self.width + 2 * VIEW), WALL)
        cells = self._grid[VIEW:-VIEW, VIEW:-VIEW]
        cells[1:-1, 4] = EMPTY
        for room in range(self.rooms):
            rows = slice(3 * room + 1, 3 * room + 3)
            cells[rows, 1:3] = cells[rows, 6:8] = EMPTY
            for column in (3, 5):
                cells[3 * room + 1 + rng.integers(2), column] = CLOSED
        key, ball = rng.integers(self.rooms, size=2)
        cells[3 * key + 1 + rng.integers(2), 1 + rng.integers(2)] = KEY
        cells[3 * ball + 1 + rng.integers(2), 6 + rng.integers(2)] = BALL
        locked = cells[3 * ball + 1 : 3 * ball + 3, 5]
        locked[locked == CLOSED] = LOCKED
        self._row, self._column, self._way = 1 + int(rng.integers(self.height - 2)), 4, 0
        self._has_key, self._steps = 0, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action < PICK:
            self._way = int(action)
        down, right = MOVES[self._way]
        front = self._row + down + VIEW, self._column + right + VIEW
        kind, taken = self._grid[front], False
        if action < PICK and kind == EMPTY:
            self._row, self._column = self._row + down, self._column + right
        elif action == PICK and kind in (KEY, BALL):
            self._has_key, taken = 1, kind == BALL
            self._grid[front] = EMPTY
        elif action == TOGGLE and (kind == CLOSED or (kind == LOCKED and self._has_key)):
            self._grid[front] = EMPTY
        self._steps += 1
        return self._seen(), float(taken), taken, self._steps >= self.limit, {}

    def _seen(self) -> dict[str, Any]:
        side = 2 * VIEW + 1
        view = self._grid[self._row : self._row + side, self._column : self._column + side]
        place = np.array([self._row, self._column, self._has_key])
        return {"view": view.ravel().copy(), "way": self._way, "place": place}


class NoisyTV(gymnasium.Env[Any, Any]):
    """A room of 7 x 7 cells without rewards. In the four cells of a corner the agent sees a
    television: 16 random numbers, new at each step (Burda et al. 2018, arXiv:1808.04355, section
    5).
    """

    counted: ClassVar[list[int]] = [0, 0]  # steps of all such envs of this process, those with a TV

    def __init__(self, size: int = 7, limit: int = 50) -> None:
        self.size, self.limit = size, limit
        self.observation_space = spaces.Box(-np.inf, np.inf, (size * size + 16,), np.float32)
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._row, self._column = (int(x) for x in self.np_random.integers(self.size, size=2))
        self._steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        down, right = MOVES[int(action)]
        self._row = min(max(self._row + down, 0), self.size - 1)
        self._column = min(max(self._column + right, 0), self.size - 1)
        self._steps += 1
        self.counted[0] += 1
        self.counted[1] += self._looks()
        return self._seen(), 0.0, False, self._steps >= self.limit, {}

    def _looks(self) -> bool:
        return self._row < 2 and self._column < 2

    def _seen(self) -> Any:
        seen = np.zeros(self.size * self.size + 16, np.float32)
        seen[self._row * self.size + self._column] = 1.0
        if self._looks():
            seen[-16:] = self.np_random.normal(size=16)
        return seen
