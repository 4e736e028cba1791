"""The ruler with faults: an env that hangs, raises or gives nan now and then, as long as a flag
file exists.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Literal

import numpy as np
from gymnasium import spaces

from equipoise.envs.toys.ruler import LONGEST, Ruler
from equipoise.types import Array

Trouble = Literal["none", "hang", "raise", "nonfinite"]
LIVES = 1 << 24  # float32 counts exactly up to here
FOREVER_S = 10_000.0
DISTANCE = 37  # steps between the faults of neighbours, so that they do not coincide


class Faulty(Ruler):
    """A ruler that observes (stream, episode, t, life), so that no two lives show the same row.

    Every ``every`` steps of one stream in ``among`` it has ``trouble``, while ``flag`` exists.
    """

    snapshot_attributes: tuple[str, ...] = (*Ruler.snapshot_attributes, "life")

    def __init__(
        self,
        stream: int = 0,
        longest: int = LONGEST,
        trouble: Trouble = "none",
        every: int = 1000,
        among: int = 8,
        flag: str = "",
    ) -> None:
        super().__init__(stream=stream, longest=longest)
        self.observation_space = spaces.Box(0, LIVES, (4,), np.float32)
        self.life = 0
        self._trouble = trouble if stream % among == 0 else "none"
        self._every, self._flag = every, Path(flag)
        self._steps = stream * DISTANCE

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Array, dict[str, object]]:
        if seed is not None:
            self.life = seed % LIVES
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, object]]:
        self._steps += 1
        due = self._trouble != "none" and self._steps % self._every == 0 and self._flag.exists()
        if due and self._trouble == "hang":
            time.sleep(FOREVER_S)
        if due and self._trouble == "raise":
            raise ArithmeticError("the env was set to fail")
        obs, reward, terminated, truncated, info = super().step(action)
        if due and self._steps // self._every % 2:
            return obs, math.nan, terminated, truncated, info
        if due:
            obs[2] = math.nan
        return obs, reward, terminated, truncated, info

    def _obs(self) -> Array:
        return np.array((self.stream, self.number, self.t, self.life), self.dtype)
