"""One Python env a stream, stepped in turn.

Like Gymnasium's ``SyncVectorEnv`` in NEXT_STEP mode, row for row (tested), and 15 to 18 % faster on CartPole: no dispatch
on spaces, no information dicts, no second copy. One place holds each env's step, so that one failing env can be told
from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np

from equipoise.envs.base import SyncEnv
from equipoise.envs.record import Record
from equipoise.envs.seeds import stream_seeds
from equipoise.types import Array, Resume, Tree


class LoopEnv(SyncEnv):
    """``makers[i]`` makes the env of ``streams[i]``, which is seeded from (``seed``, stream) once and never again."""

    def __init__(self, makers: Sequence[Callable[[], gymnasium.Env[Any, Any]]], *, streams: Array, seed: int) -> None:
        self.envs = [make() for make in makers]
        one = self.envs[0]
        for env in self.envs[1:]:
            if env.observation_space != one.observation_space or env.action_space != one.action_space:
                spaces = [f"{e.observation_space} and {e.action_space}" for e in (one, env)]
                raise ValueError(f"all streams of a worker need the same spaces; {one}: {spaces[0]}, another: {spaces[1]}")
        super().__init__(observation=one.observation_space, action=one.action_space, streams=streams)
        self._record = Record(self.envs, streams, self.action)
        self.spec = replace(self.spec, resume=self._record.promise)
        self._seeds: list[int | None] = [*stream_seeds(seed, streams)]
        count = len(self.envs)
        self._obs: list[Any] = [None] * count
        self._reward: list[Any] = [0.0] * count
        self._terminated: list[Any] = [False] * count
        self._truncated: list[Any] = [False] * count

    def _reset(self) -> None:
        i = 0
        try:
            for i, env in enumerate(self.envs):
                self._record.resets(i, self._seeds[i])
                self._obs[i], _ = env.reset(seed=self._seeds[i])
        except Exception as error:
            self._say_where(error, i)
            raise
        self._seeds = [None] * len(self.envs)
        gather(self.ts.obs, self._obs)

    def _step(self) -> None:
        obs, reward, terminated, truncated = self._obs, self._reward, self._terminated, self._truncated
        ts, i = self.ts, 0
        np.logical_or(ts.terminated, ts.truncated, out=ts.first)  # as the row before has it
        np.logical_not(ts.first, out=ts.valid)
        seam = ts.first.tolist()
        self._record.steps(self.action)
        try:
            for i, (env, action) in enumerate(zip(self.envs, self.action, strict=True)):
                if seam[i]:
                    self._record.resets(i)
                    obs[i], _ = env.reset()
                    reward[i], terminated[i], truncated[i] = 0.0, False, False
                else:
                    obs[i], reward[i], terminated[i], truncated[i], _ = env.step(action)
        except Exception as error:
            self._say_where(error, i)
            raise
        gather(ts.obs, obs)
        ts.reward[:] = reward
        ts.terminated[:] = terminated
        ts.truncated[:] = truncated

    def _say_where(self, error: Exception, i: int) -> None:
        error.add_note(f"in {self.envs[i]}, stream {int(self.ts.stream[i])}")

    def _capture(self) -> Tree:
        return self._record.state()

    def _restore(self, state: Tree) -> tuple[list[Resume], dict[int, str]]:
        return self._record.load(state, self.ts)

    def _close(self) -> None:
        for env in self.envs:
            env.close()


def gather(target: Tree, observations: list[Any]) -> None:
    """Stack B observations of one stream each into the arrays [B, ...] of ``target``."""
    if isinstance(target, dict):
        for key, inner in target.items():
            gather(inner, [obs[key] for obs in observations])
    else:
        np.stack(observations, out=target, casting="same_kind")
