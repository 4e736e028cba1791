"""Repeat the first: a symbol is shown once, and asked for after a delay in which nothing is seen
and nothing matters.

In the spirit of bsuite's ``memory_length`` (Osband et al. 2020, arXiv:1908.03568, section A) and
POPGym's ``RepeatFirst`` (Morad et al. 2023, arXiv:2303.01859): the first observation is one of
``symbols``, the following mean "wait", and the observation ``delay`` steps after the first means
"answer". Reward 1 for the action that is the symbol, else 0, and the episode ends; all actions
before are ignored. A policy without memory gets 1 / ``symbols`` an episode.
"""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

DELAY, SYMBOLS = 50, 4
Array = np.ndarray


class RepeatFirst(gymnasium.Env):
    """The observation is an int64: a symbol, ``symbols`` for "wait", or one more for "answer"."""

    metadata: dict[str, object] = {"render_modes": []}
    snapshot_attributes = ("symbol", "t")

    def __init__(self, delay: int = DELAY, symbols: int = SYMBOLS) -> None:
        self.delay, self.symbols = delay, symbols
        self.observation_space, self.action_space = _spaces(delay, symbols)
        self.symbol = self.t = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Array, dict[str, object]]:
        super().reset(seed=seed)
        self.symbol, self.t = int(self.np_random.integers(self.symbols)), 0
        return self._observed(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, object]]:
        over = self.t == self.delay
        self.t += 1
        return self._observed(), float(over and int(action) == self.symbol), over, False, {}

    def _observed(self) -> Array:
        row: Array = _observed(
            np.array([self.t]), np.array([self.symbol]), self.delay, self.symbols
        )[0]
        return row


class RepeatFirstVector(VectorEnv[Array, Array, Array]):
    """``num_envs`` envs stepped at once, in NEXT_STEP."""

    metadata: dict[str, object] = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": []}
    snapshot_attributes = ("symbol", "t", "done")

    def __init__(self, num_envs: int = 1, delay: int = DELAY, symbols: int = SYMBOLS) -> None:
        self.num_envs, self.delay, self.symbols = num_envs, delay, symbols
        self.single_observation_space, self.single_action_space = _spaces(delay, symbols)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.symbol, self.t = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)
        self.done = np.zeros(num_envs, np.bool_)

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Array, dict[str, object]]:
        super().reset(seed=seed)
        self._start(np.ones(self.num_envs, np.bool_))
        self.done = np.zeros(self.num_envs, np.bool_)
        return self._observed(), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, object]]:
        before, over = self.done, self.t == self.delay
        reward = (over & (np.asarray(actions) == self.symbol)).astype(np.float32)
        self.t = self.t + 1
        self._start(before)  # streams past the delay: their episode begins again, without a reward
        self.done = over
        return self._observed(), reward, over, np.zeros(self.num_envs, np.bool_), {}

    def _start(self, which: Array) -> None:
        self.t[which] = 0
        self.symbol[which] = self.np_random.integers(self.symbols, size=int(which.sum()))

    def _observed(self) -> Array:
        row: Array = _observed(self.t, self.symbol, self.delay, self.symbols)
        return row


def _spaces(delay: int, symbols: int) -> tuple[spaces.Discrete, spaces.Discrete]:
    if delay < 1 or symbols < 2:
        raise ValueError(
            f"expected a delay of at least 1 and at least 2 symbols, got {delay} and {symbols}"
        )
    return spaces.Discrete(symbols + 2), spaces.Discrete(symbols)


def _observed(t: Array, symbol: Array, delay: int, symbols: int) -> Array:
    """The observation of each stream; the final observation shows nothing."""
    seen: Array = np.where(t == 0, symbol, np.where(t == delay, symbols + 1, symbols))
    return seen


gymnasium.register(
    "equipoise/RepeatFirst-v0",
    f"{__name__}:RepeatFirst",
    vector_entry_point=f"{__name__}:RepeatFirstVector",
)
