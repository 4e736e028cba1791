"""CartPole whose steps take their time, some streams' fifty times as much: Python envs, and
EnvPool's, for a benchmark.

``partial_streams.py`` starts runs with it. Workers import this module for the algorithm, before
they make their envs: where ``SLOWED`` is set (seconds of a step, then the slow streams), an EnvPool
gets its actions as late as such steps would be over.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
from typing import Any

import numpy as np
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from equipoise.algorithms.impala import IMPALA
from equipoise.types import Batch, LossOutput

TIMES = 50  # as long, a step of a slow stream


class Counted(IMPALA):
    """IMPALA that reports which share of its rows count."""

    def loss(
        self, net: Any, target_net: Any, batch: Batch, *, group: str, step: float, rng: Any
    ) -> LossOutput | None:
        out = super().loss(net, target_net, batch, group=group, step=step, rng=rng)
        if out is not None:
            mask = batch.data.mask
            out.metrics["real"] = mask.sum().float(), torch.tensor(float(mask.numel()))
        return out


class Sleeper(CartPoleEnv):
    """CartPole, each step of which sleeps ``step_s``, ``TIMES`` as long in the last ``slow`` of
    ``of`` streams.
    """

    def __init__(self, stream: int = 0, step_s: float = 0.02, slow: int = 0, of: int = 64) -> None:
        super().__init__()
        self._step_s = step_s * (TIMES if stream >= of - slow else 1)

    def step(self, action: Any) -> Any:
        time.sleep(self._step_s)
        return super().step(action)  # type: ignore[no-untyped-call]


class SlowedPool:
    """An EnvPool that gets the action of each stream when its step would be over."""

    def __init__(self, pool: Any, step_s: float, slow: int) -> None:
        self._pool, count = pool, pool.config["num_envs"]
        self._delay = [step_s * (TIMES if i >= count - slow else 1) for i in range(count)]
        self._due: list[tuple[float, int, Any]] = []
        self._new = threading.Condition()
        threading.Thread(target=self._hand_on, daemon=True).start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    @property
    def unwrapped(self) -> Any:
        return self

    def send(self, action: Any, env_id: Any = None) -> None:
        now = time.perf_counter()
        with self._new:
            for i, one in zip(
                range(len(action)) if env_id is None else env_id.tolist(), action, strict=True
            ):
                heapq.heappush(self._due, (now + self._delay[i], i, one))
            self._new.notify()

    def _hand_on(self) -> None:
        while True:
            with self._new:
                wait_s = self._due[0][0] - time.perf_counter() if self._due else None
                if wait_s is None or wait_s > 0:
                    self._new.wait(wait_s)
                    continue
                now, ids, actions = time.perf_counter(), list[int](), list[Any]()
                while self._due and self._due[0][0] <= now:
                    _, i, one = heapq.heappop(self._due)
                    ids.append(i)
                    actions.append(one)
            self._pool.send(np.array(actions), np.array(ids, np.int32))


if "SLOWED" in os.environ:
    import envpool

    _seconds, _slow = os.environ["SLOWED"].split(",")
    _make = envpool.make

    def _slowed(*args: Any, **given: Any) -> Any:
        return SlowedPool(_make(*args, **given), float(_seconds), int(_slow))

    envpool.make = _slowed
