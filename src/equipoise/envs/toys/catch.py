"""Catch: a ball falls down a board, the paddle in the last row must be under it. Solved by a small
net in seconds.

After bsuite's ``catch`` (Osband et al. 2020, arXiv 1908.03568, section A.1): 10 rows, 5 columns,
the ball starts in a random column of row 0, the paddle in the middle. Actions: left, stay, right.
Reward 0 until the ball is in the last row, then +1 if the paddle is there, else -1. An episode
lasts 9 steps and always terminates.
"""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

ROWS, COLUMNS = 10, 5
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]


class Catch(gymnasium.Env[Floats, np.int64]):
    """Observation [50] float32: the board row by row, 1 where the ball and where the paddle are."""

    metadata: dict[str, object] = {"render_modes": []}
    snapshot_attributes = ("row", "column", "paddle")

    def __init__(self, rows: int = ROWS, columns: int = COLUMNS) -> None:
        self.rows, self.columns = rows, columns
        self.observation_space = spaces.Box(0.0, 1.0, (rows * columns,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.row = self.column = self.paddle = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Floats, dict[str, object]]:
        super().reset(seed=seed)
        self.row, self.column, self.paddle = (
            0,
            int(self.np_random.integers(self.columns)),
            self.columns // 2,
        )
        return self._board(), {}

    def step(self, action: np.int64) -> tuple[Floats, float, bool, bool, dict[str, object]]:
        self.paddle = min(max(self.paddle + int(action) - 1, 0), self.columns - 1)
        self.row += 1
        terminated = self.row == self.rows - 1
        reward = (1.0 if self.paddle == self.column else -1.0) if terminated else 0.0
        return self._board(), reward, terminated, False, {}

    def _board(self) -> Floats:
        board = np.zeros((self.rows, self.columns), np.float32)
        board[self.row, self.column] = 1.0
        board[-1, self.paddle] = 1.0
        return board.reshape(-1)


class CatchVector(VectorEnv[Floats, NDArray[np.int64], np.ndarray]):
    """``num_envs`` boards stepped at once, in NEXT_STEP."""

    metadata: dict[str, object] = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": []}
    snapshot_attributes = ("row", "column", "paddle", "done")

    def __init__(self, num_envs: int = 1, rows: int = ROWS, columns: int = COLUMNS) -> None:
        self.num_envs, self.rows, self.columns = num_envs, rows, columns
        self.single_observation_space = spaces.Box(0.0, 1.0, (rows * columns,), np.float32)
        self.single_action_space = spaces.Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.row, self.column, self.paddle = (np.zeros(num_envs, np.int64) for _ in range(3))
        self.done: Bools = np.zeros(num_envs, np.bool_)

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Floats, dict[str, object]]:
        super().reset(seed=seed)
        self._start(np.ones(self.num_envs, np.bool_))
        self.done = np.zeros(self.num_envs, np.bool_)
        return self._board(), {}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[Floats, Floats, Bools, Bools, dict[str, object]]:
        self.paddle = np.clip(self.paddle + actions - 1, 0, self.columns - 1)
        self.row = self.row + 1
        self._start(self.done)
        self.done = self.row == self.rows - 1
        reward = np.where(self.done, np.where(self.paddle == self.column, 1.0, -1.0), 0.0).astype(
            np.float32
        )
        return self._board(), reward, self.done.copy(), np.zeros(self.num_envs, np.bool_), {}

    def _start(self, which: Bools) -> None:
        count = int(which.sum())
        self.row[which], self.paddle[which] = 0, self.columns // 2
        self.column[which] = self.np_random.integers(self.columns, size=count)

    def _board(self) -> Floats:
        board = np.zeros((self.num_envs, self.rows, self.columns), np.float32)
        streams = np.arange(self.num_envs)
        board[streams, self.row, self.column] = 1.0
        board[streams, -1, self.paddle] = 1.0
        return board.reshape(self.num_envs, -1)


gymnasium.register(
    "equipoise/Catch-v0", f"{__name__}:Catch", vector_entry_point=f"{__name__}:CatchVector"
)
