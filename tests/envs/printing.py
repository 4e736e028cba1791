"""Envs that print, and that end their process after they have printed."""

from __future__ import annotations

import os
import sys
from typing import Any

import gymnasium
import numpy as np


class Loud(gymnasium.Env[Any, Any]):
    """Prints a line a step by Python and one by the C way.

    ``exits``, ``leaves``: the step of an episode that ends the process, at once or by an exception;
    ``nan``: rewards are no numbers.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, exits: int = 0, leaves: int = 0, nan: bool = False) -> None:
        self.exits, self.leaves, self.reward, self.t = (
            exits,
            leaves,
            float("nan") if nan else 1.0,
            0,
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        print(f"by python {self.t}")
        os.write(2, f"by C {self.t}\n".encode())
        if self.t in (self.exits, self.leaves):
            print("my last words", file=sys.stderr)
            if self.exits:
                os._exit(3)
            sys.exit(3)
        return np.zeros(2, np.float32), self.reward, self.t >= 20, False, {}
