"""Bit flip: n bits, an action flips one, until they are the goal's. Without hindsight the reward is
hardly ever seen.

After Andrychowicz et al. 2017, arXiv:1707.01495, section 3.1: bits and goal are random, the reward
is -1 until they are equal and 0 then, which ends the episode; a clock cuts it after n steps. So an
episode that fails returns -n. Deviation: no episode begins at its goal.
"""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

BITS, MOST = 15, 62  # a number of as many bits is drawn
Array = np.ndarray
Observation = dict[str, Array]


class Goal:
    """The part of both that handles goals, by Gymnasium-Robotics' convention: of any number of rows
    at once.
    """

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: object) -> Array:
        """[..., n] each -> [...] float32."""
        return self.compute_terminated(achieved_goal, desired_goal, info).astype(np.float32) - 1

    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: object) -> Array:
        return np.asarray((achieved_goal == desired_goal).all(-1))


class BitFlip(Goal, gymnasium.Env):
    """Observation: ``observation`` and ``achieved_goal`` are the bits, ``desired_goal`` the goal,
    [n] int8 each.
    """

    metadata: dict[str, object] = {"render_modes": []}
    snapshot_attributes = ("bits", "goal", "t")

    def __init__(self, bits: int = BITS) -> None:
        self.observation_space, self.action_space = _spaces(bits)
        self.bits, self.goal, self.t = np.zeros(bits, np.int8), np.zeros(bits, np.int8), 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Observation, dict[str, object]]:
        super().reset(seed=seed)
        bits, goal = _drawn(self.np_random, 1, len(self.bits))
        self.bits, self.goal, self.t = bits[0], goal[0], 0
        return _observation(self.bits, self.goal), {}

    def step(
        self, action: int | np.int64
    ) -> tuple[Observation, float, bool, bool, dict[str, object]]:
        self.bits = self.bits.copy()
        self.bits[int(action)] ^= 1
        self.t += 1
        reward = float(self.compute_reward(self.bits, self.goal, {}))
        terminated = reward == 0.0
        return (
            _observation(self.bits, self.goal),
            reward,
            terminated,
            not terminated and self.t == len(self.bits),
            {},
        )


class BitFlipVector(Goal, VectorEnv[Observation, Array, Array]):
    """``num_envs`` of them stepped at once, in NEXT_STEP."""

    metadata: dict[str, object] = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": []}
    snapshot_attributes = ("bits", "goal", "t", "done")

    def __init__(self, num_envs: int = 1, bits: int = BITS) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = _spaces(bits)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.bits, self.goal = (
            np.zeros((num_envs, bits), np.int8),
            np.zeros((num_envs, bits), np.int8),
        )
        self.t, self.done = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.bool_)

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Observation, dict[str, object]]:
        super().reset(seed=seed)
        self.done = np.ones(self.num_envs, np.bool_)
        self._start()
        self.done = np.zeros(self.num_envs, np.bool_)
        return _observation(self.bits, self.goal), {}

    def step(self, actions: Array) -> tuple[Observation, Array, Array, Array, dict[str, object]]:
        self.bits[np.arange(self.num_envs), actions] ^= 1
        self.t += 1
        self._start()
        reward = self.compute_reward(self.bits, self.goal, {})
        terminated = reward == 0.0
        reward[self.done] = 0.0  # an episode begins there
        truncated = ~terminated & (self.t == self.bits.shape[1])
        self.done = terminated | truncated
        return _observation(self.bits, self.goal), reward, terminated, truncated, {}

    def _start(self) -> None:
        """Begin a new episode if the last step ended one."""
        if count := int(self.done.sum()):
            self.bits[self.done], self.goal[self.done] = _drawn(
                self.np_random, count, self.bits.shape[1]
            )
            self.t[self.done] = 0


def _spaces(bits: int) -> tuple[spaces.Dict, spaces.Discrete]:
    if not 1 <= bits <= MOST:
        raise ValueError(f"bits: expected 1 to {MOST}, got {bits}")
    names = ("observation", "achieved_goal", "desired_goal")
    return spaces.Dict({name: spaces.MultiBinary(bits) for name in names}), spaces.Discrete(bits)


def _drawn(rng: np.random.Generator, count: int, bits: int) -> tuple[Array, Array]:
    """Draw bits and goals [count, n] that differ."""
    start = rng.integers(2**bits, size=count)
    numbers = np.stack([start, start ^ rng.integers(1, 2**bits, size=count)])
    both = (numbers[..., None] >> np.arange(bits) & 1).astype(np.int8)
    return both[0], both[1]


def _observation(bits: Array, goal: Array) -> Observation:
    return {"observation": bits.copy(), "achieved_goal": bits.copy(), "desired_goal": goal.copy()}


gymnasium.register(
    "equipoise/BitFlip-v0", f"{__name__}:BitFlip", vector_entry_point=f"{__name__}:BitFlipVector"
)
