"""Envs whose start takes long, by waiting for a file that a test writes or in one call that Python
cannot interrupt.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np


class Waiting(gymnasium.Env[Any, Any]):
    """``reset`` returns once there is a file ``go``; ``stuck``: the constructor computes in C for
    minutes.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(
        self,
        go: str = "",
        stuck: bool = False,
        endless: bool = False,
        reset_s: float = 0.0,
        step_s: float = 0.0,
    ) -> None:
        self.go, self.endless, self.reset_s, self.step_s, self.t = go, endless, reset_s, step_s, 0
        if stuck:
            np.linalg.svd(np.random.default_rng(0).random((6000, 6000)))  # minutes in LAPACK

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        while self.go and not Path(self.go).exists():
            time.sleep(0.01)
        time.sleep(self.reset_s)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(self.step_s)
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t >= 5 and not self.endless, False, {}
