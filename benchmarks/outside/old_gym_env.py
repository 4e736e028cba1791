"""An env of package ``gym``: as it is, and wrapped by shimmy as the error about it advises."""

from __future__ import annotations

from typing import Any

import gym
import numpy as np


class Old(gym.Env):  # type: ignore[misc]
    """Gym before 0.26: ``reset`` gives an observation alone, ``step`` gives four values."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def seed(self, seed: int | None = None) -> list[int | None]:
        self.rng = np.random.default_rng(seed)
        return [seed]

    def reset(self) -> Any:
        if not hasattr(self, "rng"):
            self.seed()
        self.at, self.steps, self.goal = 0, 0, 1 if self.rng.random() < 0.5 else -1
        return np.array([0.0, self.goal], np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        self.at, self.steps = self.at + (1 if action else -1), self.steps + 1
        there, over = abs(self.at) == 4, self.steps >= 50
        reward = float(there and self.at * self.goal > 0) - 0.01
        info = {"TimeLimit.truncated": True} if over and not there else {}
        return np.array([self.at / 9, self.goal], np.float32), reward, there or over, info


def make() -> Old:
    return Old()


def wrapped() -> Any:
    import shimmy

    return shimmy.GymV21CompatibilityV0(env=make())
