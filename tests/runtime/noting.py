"""An env and algorithms that note, in a file each, which parts of torch's compiler their process
has imported.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from equipoise.algorithms.impala import IMPALA
from equipoise.algorithms.sac import SAC

COMPILER = ("torch._dynamo", "torch._inductor", "sympy")
NOTED_AT = 20  # calls: after the first acts, and after the first update


def note(path: str, who: str) -> None:
    found = Path(path) / who
    if not found.exists():
        written = found.with_suffix(f".{os.getpid()}")
        written.write_text(" ".join(name for name in COMPILER if name in sys.modules))
        written.rename(found)


class Noting(gymnasium.Env[Any, Any]):
    """Ten steps an episode; the action is a number."""

    def __init__(self, path: str) -> None:
        self.observation_space, self.action_space = (
            spaces.Box(-1, 1, (2,), np.float32),
            spaces.Box(-1, 1, (1,), np.float32),
        )
        self._path, self._steps = path, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps == NOTED_AT:
            note(self._path, "env")
        return np.zeros(2, np.float32), 1.0, False, self._steps % 10 == 0, {}


@dataclass(frozen=True, kw_only=True)
class NotingIMPALA(IMPALA):
    path: str = ""

    def act(self, net: Any, *args: Any, **kwargs: Any) -> Any:
        net.acts = getattr(net, "acts", 0) + 1
        if net.acts == NOTED_AT:
            note(self.path, "acting")
        return super().act(net, *args, **kwargs)

    def targets(self, net: Any, *args: Any, **kwargs: Any) -> Any:
        net.updates = getattr(net, "updates", 0) + 1
        if net.updates == NOTED_AT:
            note(self.path, "learner")
        return super().targets(net, *args, **kwargs)


@dataclass(frozen=True, kw_only=True)
class NotingSAC(SAC):
    path: str = ""

    def targets(self, net: Any, *args: Any, **kwargs: Any) -> Any:
        net.updates = getattr(net, "updates", 0) + 1
        if net.updates == NOTED_AT:
            note(self.path, "learner")
        return super().targets(net, *args, **kwargs)
