"""Goal envs: what another goal would have been worth.

The convention is Gymnasium-Robotics': a Dict observation with ``observation``, ``achieved_goal`` and ``desired_goal``, and
``compute_reward(achieved_goal, desired_goal, info)`` of rows at once. ``compute_terminated``, where the env has it, is all that
says whether an episode ends at a row; where it takes one row only it is asked row by row. ``info`` is {}.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from equipoise.envs.adapter import GymnasiumEnv
from equipoise.envs.loop import LoopEnv
from equipoise.envs.spaces import observation_spec

KEYS = ("observation", "achieved_goal", "desired_goal")
Array = np.ndarray[Any, Any]


class Goals:
    """The rules of one goal env, asked of an instance that does nothing else; one step of it shows that they hold."""

    def __init__(self, env: Any) -> None:
        """``env`` from ``make``; ValueError says what is missing, or wrong."""
        self._env, space = env, env.spec.observation
        missing = [key for key in KEYS if not isinstance(space, spaces.Dict) or key not in space.spaces]
        if missing:
            raise ValueError(f"replay.relabel: expected an env whose observation is a Dict with {', '.join(KEYS)}, got {space}")
        if (wanted := observation_spec(space["desired_goal"])) != (got := observation_spec(space["achieved_goal"])):
            raise ValueError(f"replay.relabel: expected an achieved_goal like the desired_goal, {wanted}, got {got}")
        if not isinstance(env, LoopEnv | GymnasiumEnv):
            raise ValueError(f"replay.relabel: expected a Gymnasium env, got {type(env).__name__}")
        if isinstance(env, GymnasiumEnv) and env.same_step:
            raise ValueError(
                f"replay.relabel: expected an env that shows the last observation of an episode, got {env.env}, which resets "
                "in the same step: make it with autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP"
            )
        reward = _method(env, "compute_reward")
        if reward is None:
            raise ValueError(f"replay.relabel: expected an env with compute_reward, got {_raw(env)}, which has none")
        self._reward, self._terminated = reward, _method(env, "compute_terminated")
        self._try()

    def reward(self, achieved: Array, desired: Array) -> Array:
        """[k, ...] each -> [k] float32."""
        reward = np.asarray(self._reward(achieved, desired, {}), np.float32)
        if reward.shape != (len(achieved),):
            raise ValueError(
                f"compute_reward: expected rewards of shape [{len(achieved)}] for as many goals at once, got shape "
                f"{list(reward.shape)}"
            )
        if not np.isfinite(reward).all():
            raise ValueError(f"compute_reward: expected finite rewards, got {reward[~np.isfinite(reward)][0]}")
        return reward

    def terminated(self, achieved: Array, desired: Array) -> Array | None:
        """[k] bool; None where the env does not say."""
        if self._terminated is None:
            return None
        if self._at_once:
            return np.asarray(self._terminated(achieved, desired, {}), np.bool_)
        said = [bool(self._terminated(a, d, {})) for a, d in zip(achieved, desired, strict=True)]
        return np.array(said, np.bool_)

    def close(self) -> None:
        self._env.close()

    def _try(self) -> None:
        """One step: is its reward what ``compute_reward`` says of it?"""
        raw = _raw(self._env)
        raw.action_space.seed(1)  # another than the env's, or both may draw the same
        raw.reset(seed=0)
        obs, reward, *_ = raw.step(raw.action_space.sample())
        rows = (2, *np.shape(obs["achieved_goal"])[isinstance(self._env, GymnasiumEnv) :])
        achieved, desired = (np.broadcast_to(obs[key], rows) for key in ("achieved_goal", "desired_goal"))
        try:
            said = self.reward(achieved, desired)
            ended: Any = False if self._terminated is None else self._terminated(achieved, desired, {})
        except Exception as error:
            raise ValueError(
                f"replay.relabel: expected {raw} to judge two goals at once by compute_reward and compute_terminated with "
                f"info={{}}: {type(error).__name__}: {error}"
            ) from error
        self._at_once = np.shape(ended) == (2,)
        if not np.allclose(said, reward, rtol=1e-4, atol=1e-6):
            raise ValueError(
                f"replay.relabel: expected compute_reward to say what the step's reward is, {float(np.squeeze(reward)):g}, got "
                f"{said[0]:g}: a wrapper that changes rewards needs a compute_reward that does the same"
            )


def _raw(env: LoopEnv | GymnasiumEnv) -> Any:
    return env.envs[0] if isinstance(env, LoopEnv) else env.env


def _method(env: LoopEnv | GymnasiumEnv, name: str) -> Callable[..., Any] | None:
    """Of the outermost wrapper that has it."""
    raw = _raw(env)
    if isinstance(env, LoopEnv):
        return raw.get_wrapper_attr(name) if raw.has_wrapper_attr(name) else None
    return getattr(raw.unwrapped, name, None)
