"""Envs that end badly."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

COMPUTES_S = 3.0


def compute(seconds: float) -> None:
    """Take so many seconds of a core."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class Failing(gymnasium.Env[Any, Any]):
    """Fine for ``after`` steps of its process, then ``how``."""

    def __init__(self, how: str = "raise", after: int = 100, stream: int = 0) -> None:
        self.observation_space, self.action_space = (
            spaces.Box(-1, 1, (2,), np.float32),
            spaces.Discrete(2),
        )
        self.how, self.left, self.stream = how, after, stream

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        if self.left < 0 and self.stream == 0:
            if self.how == "raise":
                raise RuntimeError("the reactor is leaking")
            if self.how == "exit":
                os._exit(7)
            if self.how == "abort":
                os.abort()
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if self.how == "hang":
                time.sleep(10_000)
            if self.how == "loop":
                compute(10_000)
            if self.how == "compute" and self.left == -1:
                compute(COMPUTES_S)
        return np.zeros(2, np.float32), 1.0, False, False, {}


def broken_at_birth() -> Any:
    raise RuntimeError("no such world")
