"""A Gymnasium ``VectorEnv`` as an ``Env``: native vector envs, and what a user's callable returns.

Row by row (d: the row ended an episode)::

    NEXT_STEP   obs  o0  o1  o2(final)  p0      p1      the true final observation is a row, the reset a masked seam
                d             x
                first x                 x               valid False, reward 0, the action was ignored
    SAME_STEP   obs  o0  o1  p0         p1              the final observation is not a row: no value may be taken from it,
                d             x                         so a truncation counts as a termination
                first x       x                         no seam, every row is valid

Information dicts are not touched.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from equipoise.envs import snapshot
from equipoise.envs.base import SyncEnv
from equipoise.envs.seeds import stream_seeds
from equipoise.types import Array, Resume, Tree

TRUNCATION = "truncation treated as termination"


class GymnasiumEnv(SyncEnv):
    """``env`` of B streams, seeded from (``seed``, stream): each stream's where it takes several, else the first's."""

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        *,
        streams: Array,
        seed: int,
        autoreset: AutoresetMode | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        if env.num_envs != len(streams):
            raise ValueError(f"{env} has {env.num_envs} envs, expected {len(streams)}: one for each stream of the worker")
        self.env = env
        self._wrapped = env.unwrapped is not env
        mode = autoreset or autoreset_mode(env)
        self.same_step = mode is AutoresetMode.SAME_STEP
        super().__init__(
            observation=env.single_observation_space,
            action=env.single_action_space,
            streams=streams,
            resume="exact" if snapshot.possible(env) else "restart",
            notes=(*notes, TRUNCATION) if self.same_step else notes,
        )
        seeds = stream_seeds(seed, streams)
        self._seed: Any = seeds if isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv) else seeds[0]

    def _reset(self) -> None:
        obs, _ = self.env.reset(seed=self._seed)
        self._seed = None  # a reset after the first goes on with the env's own generator
        observe(self.ts.obs, obs)

    def _step(self) -> None:
        obs, reward, terminated, truncated, _ = self._exchange()
        ts = self.ts
        if not self.same_step:
            np.logical_or(ts.terminated, ts.truncated, out=ts.first)  # as the row before has it
            np.logical_not(ts.first, out=ts.valid)
        np.copyto(ts.terminated, terminated)
        np.copyto(ts.truncated, truncated)
        np.copyto(ts.reward, reward)
        observe(ts.obs, obs)
        if self.same_step:
            np.logical_or(ts.terminated, ts.truncated, out=ts.terminated)
            np.copyto(ts.first, ts.terminated)
            ts.valid.fill(True)
        elif self._wrapped:
            ts.reward[ts.first] = 0.0  # a wrapper of rewards does not know of seams

    def _exchange(self) -> tuple[Any, Any, Any, Any, Any]:
        return self.env.step(self.action)

    def _capture(self) -> Tree:
        return snapshot.capture(self.env)

    def _restore(self, state: Tree) -> tuple[list[Resume], dict[int, str]]:
        snapshot.restore(self.env, state)
        return ["exact"] * len(self.ts.stream), {}

    def _close(self) -> None:
        self.env.close()


def observe(target: Tree, obs: Any) -> None:
    """Copy a batched observation into the arrays of ``target``; float64 becomes float32."""
    if isinstance(target, dict):
        for key, inner in target.items():
            observe(inner, obs[key])
    else:
        np.copyto(target, obs)  # same_kind is its default


def autoreset_mode(env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """What the env says in ``metadata["autoreset_mode"]``; ValueError where it says nothing, or that it never resets."""
    said = env.metadata.get("autoreset_mode")
    modes: dict[Any, AutoresetMode] = {name: mode for mode in AutoresetMode for name in (mode, mode.value)}
    if (mode := modes.get(said)) is None:
        raise ValueError(
            f"{env} does not say in metadata['autoreset_mode'] what it does after an episode's end (found {said!r}); "
            "set it to gymnasium.vector.AutoresetMode.NEXT_STEP or SAME_STEP, whichever is true"
        )
    if mode is AutoresetMode.DISABLED:
        raise ValueError(f"{env} has autoreset disabled; make it with autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP")
    return mode
