"""Batch-stepped simulators as device envs: the vector envs of Isaac Lab and of Genesis. Neither
package is imported here.

Your function makes the simulator and hands it to ``IsaacLab`` or ``Genesis``;
``device:module:function`` names the function::

    def cartpole(num_envs: int, device: str) -> IsaacLab:
        ...  # start the app, make the env with num_envs and device
        return IsaacLab(env)

Both reset in the same step (SAME_STEP), keep their state to themselves (so a resume begins new
episodes), and draw their own random numbers (so a stream's episodes depend on how many there are).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from equipoise import foreign, tree
from equipoise.device_envs.device_env import Autoreset
from equipoise.hints import hint
from equipoise.seeds import derive_seed
from equipoise.types import TimeStep, Tree


class Simulator:
    """The part that both have in common: flags, dtypes, and one group of a dict of observations."""

    autoreset: ClassVar[Autoreset] = "same_step"
    exact: ClassVar[bool] = False

    def __init__(
        self, env: Any, observation: gymnasium.Space[object], action: gymnasium.Space[object]
    ) -> None:
        self.env, self.observation, self.action = env, observation, action
        self._streams = torch.empty(0)

    def _begin(self, streams: Tensor) -> None:
        if self.env.num_envs != len(streams):
            raise ValueError(
                f"{self._name}: expected num_envs={len(streams)}, one env a stream, got "
                f"{self.env.num_envs}"
            )
        self._streams = streams

    def _rows(
        self,
        obs: Tree,
        reward: Tensor | None,
        terminated: Tensor | None,
        truncated: Tensor | None,
        final: Tree | None,
    ) -> TimeStep:
        """Rows of all streams, copied from the simulator's tensors; ``reward`` None: a reset's."""
        no = torch.zeros_like(self._streams, dtype=torch.bool)
        begins = reward is None
        ends, cuts = (
            no if flag is None else flag.bool().reshape(-1).clone()
            for flag in (terminated, truncated)
        )
        return TimeStep(
            obs=tree.map(_copied, obs),
            reward=no.float() if reward is None else reward.float().reshape(-1).clone(),
            terminated=ends,
            truncated=cuts,
            first=~no if begins else ends | cuts,
            valid=no if begins else ~no,
            stream=self._streams,
            final=None if final is None else tree.map(_copied, final),
        )

    @property
    def _name(self) -> str:
        return type(self.env).__name__

    def close(self) -> None:
        if foreign.calls(self.env, "close"):
            self.env.close()


class IsaacLab(Simulator):
    """An env of Isaac Lab (``ManagerBasedRLEnv``, ``DirectRLEnv``;
    https://isaac-sim.github.io/IsaacLab).

    It has ``num_envs``, ``single_observation_space`` (a Dict of groups), ``single_action_space``,
    ``reset(seed=)`` -> (obs, extras), ``step(action)`` -> (obs, reward, terminated, time outs,
    extras); obs is a dict of groups of tensors. A truncation bootstraps from
    ``extras["final_obs"]``, or counts as a termination.
    """

    def __init__(self, env: Any, group: str = "policy") -> None:
        """``group``: of the observations that the policy sees."""
        groups = env.single_observation_space
        if group not in groups.spaces:
            known = hint(group, list(groups.spaces))
            raise ValueError(
                f"group: expected a group of {type(env).__name__}'s observations, got "
                f"{group!r}{known}"
            )
        super().__init__(env, groups[group], bounded(env.single_action_space))
        self._group = group

    def reset(self, seed: int, streams: Tensor) -> tuple[Tree, TimeStep]:
        self._begin(streams)
        obs, _ = self.env.reset(seed=derive_seed(seed, f"simulator {int(streams[0])}") % 2**31)
        return {}, self._rows(obs[self._group], None, None, None, None)

    def step(self, state: Tree, action: Tree) -> tuple[Tree, TimeStep]:
        obs, reward, terminated, truncated, extras = self.env.step(action)
        final = extras.get("final_obs") if isinstance(extras, Mapping) else None
        last = None if final is None else final[self._group]
        return {}, self._rows(obs[self._group], reward, terminated, truncated, last)


class Genesis(Simulator):
    """A vector env as in Genesis' examples, of rsl_rl's form
    (https://genesis-world.readthedocs.io).

    It has ``num_envs``, ``num_actions``, ``reset()`` -> (obs, extras), ``step(action)`` -> (obs,
    reward, done, extras), if ``extras["time_outs"]`` marks the cuts among ``done``. Observations
    are [B, ``num_obs``], or groups of these. A truncation bootstraps from ``extras["final_obs"]``.
    """

    def __init__(self, env: Any, group: str = "policy", *, clip: float = 100.0) -> None:
        """``group``: of the observations, if a mapping. ``clip``: bound of an action."""
        action = spaces.Box(-clip, clip, (env.num_actions,), np.float32)
        super().__init__(env, spaces.Box(-np.inf, np.inf, (env.num_obs,), np.float32), action)
        self._group = group

    def reset(self, seed: int, streams: Tensor) -> tuple[Tree, TimeStep]:
        self._begin(streams)
        answer = self.env.reset()  # Genesis is seeded if it is initialised: gs.init(seed=)
        obs = answer[0] if isinstance(answer, tuple) else answer
        return {}, self._rows(self._seen(obs), None, None, None, None)

    def step(self, state: Tree, action: Tree) -> tuple[Tree, TimeStep]:
        obs, reward, done, extras = self.env.step(action)
        done, late = done.bool().reshape(-1), extras.get("time_outs")
        cut = torch.zeros_like(done) if late is None else late.bool().reshape(-1) & done
        last = extras.get("final_obs")
        return {}, self._rows(
            self._seen(obs), reward, done & ~cut, cut, None if last is None else self._seen(last)
        )

    def _seen(self, obs: Tree) -> Tensor:
        found: Tensor = obs if isinstance(obs, Tensor) else obs[self._group]
        return found


def _copied(x: Tensor) -> Tensor:
    """A tensor's numbers, floats as float32."""
    return x.float().clone() if x.is_floating_point() else x.clone()


def bounded(space: gymnasium.Space[object], most: float = 100.0) -> gymnasium.Space[object]:
    """A Box with infinite bounds within ``most`` instead: algorithms scale actions by bounds."""
    if isinstance(space, spaces.Box) and not (
        np.isfinite(space.low).all() and np.isfinite(space.high).all()
    ):
        low, high = np.clip(space.low, -most, most), np.clip(space.high, -most, most)
        return spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)
    return space
