"""CartPole that takes its time: every step sleeps, which costs no core. For ``scaling.py``; workers
import it.
"""

from __future__ import annotations

import time
from typing import Any

from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv


class SleepyCartPole(CartPoleVectorEnv):
    """``num_envs`` of CartPole-v1; ``in_turn`` of them are stepped one after the other, these
    groups side by side.
    """

    def __init__(self, num_envs: int = 1, step_s: float = 0.002, in_turn: int = 1) -> None:
        super().__init__(num_envs, max_episode_steps=500)
        self._pause_s = step_s * min(num_envs, in_turn)

    def step(self, action: Any) -> Any:
        time.sleep(self._pause_s)
        return super().step(action)
