"""The T-maze: a sign at the start shows which way to turn at the far end of a corridor. Only a
policy with memory turns right.

After Bakker 2002, Reinforcement learning with long short-term memory, section 4: the agent begins
at the west end of a corridor and may go north, east, south or west. The sign is seen at the start,
all cells of the corridor look the same, and so does the junction at its east end. Turning north or
south there ends the episode: 4 for the way of the sign, else -0.1. Standing still, against a wall,
gives -0.1, every other step 0. Deviation: a clock cuts the episode after ``4 * (length + 1)``
steps.

A policy without memory turns the right way half of the time: at most 1.95 an episode; one with
memory gets 4.
"""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

LENGTH = 30
NORTH, EAST, SOUTH, WEST = range(4)
CORRIDOR, JUNCTION = 2, 3  # observations; 0 and 1 are the signs for north and south
GOOD, BAD = 4.0, -0.1
Array = np.ndarray


class TMazeVector(VectorEnv[Array, Array, Array]):
    """``num_envs`` mazes stepped at once, in NEXT_STEP. Observation [num_envs] int64: a sign,
    corridor or junction.
    """

    metadata: dict[str, object] = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": []}
    snapshot_attributes = ("place", "sign", "t", "done")

    def __init__(self, num_envs: int = 1, length: int = LENGTH) -> None:
        self.num_envs, self.length = num_envs, _checked(length)
        self.single_observation_space, self.single_action_space = (
            spaces.Discrete(4),
            spaces.Discrete(4),
        )
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.place, self.sign, self.t = (np.zeros(num_envs, np.int64) for _ in range(3))
        self.done = np.zeros(num_envs, np.bool_)

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Array, dict[str, object]]:
        super().reset(seed=seed)
        self._start(np.ones(self.num_envs, np.bool_))
        self.done = np.zeros(self.num_envs, np.bool_)
        return observed(self.place, self.sign, self.length), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, object]]:
        before = self.done
        self.place, reward, terminated = moved(
            self.place, self.sign, np.asarray(actions), self.length
        )
        self.t = self.t + 1
        self._start(before)
        reward[before], terminated[before] = 0.0, False
        truncated = ~terminated & (self.t == most_steps(self.length))
        self.done = terminated | truncated
        return observed(self.place, self.sign, self.length), reward, terminated, truncated, {}

    def _start(self, which: Array) -> None:
        self.place[which], self.t[which] = 0, 0
        self.sign[which] = self.np_random.integers(2, size=int(which.sum()))


class TMaze(gymnasium.Env):
    """One maze; the observation is an int64."""

    metadata: dict[str, object] = {"render_modes": []}
    snapshot_attributes = ("place", "sign", "t")

    def __init__(self, length: int = LENGTH) -> None:
        self.length = _checked(length)
        self.observation_space, self.action_space = spaces.Discrete(4), spaces.Discrete(4)
        self.place = self.sign = self.t = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Array, dict[str, object]]:
        super().reset(seed=seed)
        self.place, self.sign, self.t = 0, int(self.np_random.integers(2)), 0
        return self._observed(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, object]]:
        place, reward, terminated = moved(
            np.array([self.place]), np.array([self.sign]), np.array([action]), self.length
        )
        self.place, self.t = int(place[0]), self.t + 1
        truncated = not terminated[0] and self.t == most_steps(self.length)
        return self._observed(), float(reward[0]), bool(terminated[0]), truncated, {}

    def _observed(self) -> Array:
        row: Array = observed(np.array([self.place]), np.array([self.sign]), self.length)[0]
        return row


def _checked(length: int) -> int:
    if length < 1:
        raise ValueError(f"length: expected a corridor of at least 1 cell, got {length}")
    return length


def most_steps(length: int) -> int:
    return 4 * (length + 1)


def moved(place: Array, sign: Array, action: Array, length: int) -> tuple[Array, Array, Array]:
    """Move: arguments [B] -> the next place, reward, terminated, each [B]."""
    after = np.clip(place + (action == EAST) - (action == WEST), 0, length)
    turned = (place == length) & ((action == NORTH) | (action == SOUTH))
    right = turned & ((action == SOUTH) == (sign == 1))
    reward = np.where(right, GOOD, np.where(after == place, BAD, 0.0)).astype(np.float32)
    return after, reward, turned


def observed(place: Array, sign: Array, length: int) -> Array:
    seen: Array = np.where(place == 0, sign, np.where(place == length, JUNCTION, CORRIDOR))
    return seen


for name, length in (("TMaze", LENGTH), ("TMaze100", 100)):
    gymnasium.register(
        f"equipoise/{name}-v0",
        f"{__name__}:TMaze",
        vector_entry_point=f"{__name__}:TMazeVector",
        kwargs={"length": length},
    )
