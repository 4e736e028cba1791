"""An env and two algorithms with costs that are planted: sleeps, which take no core, and work on
one.
"""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass
from typing import Any

from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from setproctitle import getproctitle

from equipoise.algorithms.dqn import DQN
from equipoise.algorithms.impala import IMPALA
from equipoise.learners.pool import Group
from equipoise.types import LossOutput


class Slow(CartPoleVectorEnv):
    """CartPole whose step sleeps and computes for so many seconds; that of actor 0 sleeps
    ``behind`` times as long.

    ``later`` seconds after it was made a step begins to sleep four times as long; 0: never.
    ``taken`` seconds after it was made the process of every second actor is killed; 0: never.
    """

    def __init__(
        self,
        num_envs: int = 1,
        sleep_s: float = 0.0,
        work_s: float = 0.0,
        behind: float = 1.0,
        later: float = 0.0,
        taken: float = 0.0,
    ) -> None:
        super().__init__(num_envs, max_episode_steps=500)
        self._sleep_s = sleep_s * (behind if getproctitle().endswith("actor 0") else 1.0)
        self._work_s = work_s
        self._slower_at = time.monotonic() + later if later else float("inf")
        odd = re.search(r"actor \d*[13579]$", getproctitle())
        self._killed_at = time.monotonic() + taken if taken and odd else float("inf")

    def step(self, action: Any) -> Any:
        if self._sleep_s:
            if time.monotonic() > self._killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(self._sleep_s * (4 if time.monotonic() > self._slower_at else 1))
        until = time.thread_time() + self._work_s
        while time.thread_time() < until:
            pass
        return super().step(action)


WAIT = Group._wait


def _slower(seconds: float) -> Any:
    """A wait for a sum over a slow network."""

    def wait(self: Group, number: int) -> None:
        time.sleep(seconds)
        self._summed(seconds)
        WAIT(self, number)

    return wait


@dataclass(frozen=True, kw_only=True)
class SlowIMPALA(IMPALA):
    """A loss that sleeps for each of its rows, acting that sleeps for each stream, and sums over
    learners that take longer.
    """

    learn_us: float = 0.0
    act_us: float = 0.0
    sum_ms: float = 0.0

    def act(self, net: Any, obs: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
        if self.act_us:
            time.sleep(self.act_us * first.numel() / 1e6)
        return super().act(net, obs, first, *args, **kwargs)

    def loss(self, *args: Any, **kwargs: Any) -> LossOutput | None:
        if self.sum_ms and Group._wait is WAIT:  # once in a process
            Group._wait = _slower(self.sum_ms / 1e3)  # type: ignore[method-assign]
        time.sleep(self.learn_us * args[2].data.mask.numel() / 1e6)
        return super().loss(*args, **kwargs)


@dataclass(frozen=True, kw_only=True)
class SlowDQN(DQN):
    """A loss that sleeps for each item."""

    learn_us: float = 0.0

    def loss(self, *args: Any, **kwargs: Any) -> LossOutput | None:
        time.sleep(self.learn_us * args[2].weight.numel() / 1e6)
        return super().loss(*args, **kwargs)
