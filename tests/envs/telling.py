"""Envs whose ``info`` says something."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Wandering(gymnasium.Env[Any, Any]):
    """A walk on a line for 5 to 14 steps, its length drawn at each reset. ``place`` in every step;
    ``end/right`` in the last.

    ``spoilt``: the episode from which on ``place`` is a word.
    """

    observation_space = gymnasium.spaces.Box(-20, 20, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    snapshot_attributes = ("place", "t", "length", "episodes")

    def __init__(self, spoilt: int | None = None) -> None:
        self.spoilt = spoilt
        self.place = self.t = self.length = self.episodes = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.t, self.length = 0, 0, int(self.np_random.integers(5, 15))
        self.episodes += 1
        return np.zeros(1, np.float32), {"place": 1000}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place, self.t = self.place + 2 * int(action) - 1, self.t + 1
        ended = self.t == self.length
        info: dict[str, Any] = (
            {"place": self.place} if self.episodes != self.spoilt else {"place": "here"}
        )
        if ended:
            info["end"] = {"right": self.place > 0}
        return np.full(1, self.place, np.float32), float(self.place > 0), ended, False, info
