"""An env for trainings on the answers of the page."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Signs(gymnasium.Env[Any, Any]):
    """An action names the sign of a number at random; an observation has the next number, and
    whether the action was right.

    The reward is -1 for a right action, so a policy that learned from it would learn the opposite.
    Numbers and signs are as new as any other, so novelty changes nothing.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 20

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        return self._seen(self.np_random.choice((-1, 1))), {}

    def step(self, action: Any) -> Any:
        right = 1 if action == (self._number > 0) else -1
        self._t += 1
        return self._seen(right), -right, False, self._t == self.steps, {}

    def _seen(self, right: int) -> Any:
        self._number = self.np_random.uniform(-1, 1)
        return np.array([self._number, right], np.float32)
