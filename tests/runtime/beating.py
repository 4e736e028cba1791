"""A slow goal env that writes down when it was stepped, for what a run that is killed has told of
it.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

STEP_S = 0.02
# the process that stepped an env, and the moment at which it had done so
BEAT = struct.Struct("<qd")
LENGTH = 50  # steps of an episode
POINT = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Beating(gymnasium.Env[Any, Any]):
    """A point that is to be moved to a goal. Each row of its stream is a beat at the end of the
    file ``beats``.
    """

    observation_space = spaces.Dict(
        {"observation": POINT, "achieved_goal": POINT, "desired_goal": POINT}
    )
    action_space = POINT

    def __init__(self, beats: str) -> None:
        self._file, self._begun = os.open(beats, os.O_WRONLY | os.O_CREAT | os.O_APPEND), False
        self._at, self._goal = np.zeros(2, np.float32), np.zeros(2, np.float32)
        self._t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        self._at, self._goal = (
            self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32) for _ in range(2)
        )
        if self._begun:  # the first reset is no row
            self._beat()
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        time.sleep(STEP_S)
        self._begun = True
        self._t += 1
        self._at = np.clip(self._at + 0.1 * action, -1.0, 1.0).astype(np.float32)
        reward = float(self.compute_reward(self._at, self._goal, {}))
        self._beat()
        return self._seen(), reward, False, self._t >= LENGTH, {}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return -(np.linalg.norm(achieved_goal - desired_goal, axis=-1) > 0.2).astype(np.float32)

    def close(self) -> None:
        os.close(self._file)

    def _seen(self) -> dict[str, Any]:
        return {"observation": self._at, "achieved_goal": self._at, "desired_goal": self._goal}

    def _beat(self) -> None:
        os.write(self._file, BEAT.pack(os.getpid(), time.monotonic()))


def moments(beats: Path, processes: Collection[int]) -> list[float]:
    """When these processes made rows, the earliest first."""
    data = beats.read_bytes() if beats.exists() else b""
    return sorted(
        at
        for pid, at in BEAT.iter_unpack(data[: len(data) // BEAT.size * BEAT.size])
        if pid in processes
    )
