"""Goal envs: the reward that another goal would have given.

The convention is Gymnasium-Robotics': a Dict observation with ``observation``, ``achieved_goal``
and ``desired_goal``, and ``compute_reward(achieved_goal, desired_goal, info)`` of rows at once.
``compute_terminated``, if the env has it, alone decides whether an episode ends at a row; if it
takes only one row it is asked row by row. ``info`` is {}.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from equipoise import foreign
from equipoise.envs.adapter import GymnasiumEnv
from equipoise.envs.loop import LoopEnv
from equipoise.envs.spaces import observation_spec

KEYS = ("observation", "achieved_goal", "desired_goal")
EPISODE = 200  # most steps that are compared
Array = np.ndarray


class Goals:
    """The rules of one goal env, asked of an instance of its own and tried in one episode."""

    def __init__(self, env: Any) -> None:
        """Take an ``env`` from ``make``; ValueError names the missing or wrong part."""
        self._env, space = env, env.spec.observation
        missing = [
            key for key in KEYS if not isinstance(space, spaces.Dict) or key not in space.spaces
        ]
        if missing:
            raise ValueError(
                "replay.relabel: expected an env whose observation is a Dict with "
                f"{', '.join(KEYS)}, got {space}"
            )
        if (wanted := observation_spec(space["desired_goal"])) != (
            got := observation_spec(space["achieved_goal"])
        ):
            raise ValueError(
                f"replay.relabel: expected an achieved_goal like the desired_goal, {wanted}, got "
                f"{got}"
            )
        if not isinstance(env, LoopEnv | GymnasiumEnv):
            raise ValueError(f"replay.relabel: expected a Gymnasium env, got {type(env).__name__}")
        if isinstance(env, GymnasiumEnv) and env.same_step:
            raise ValueError(
                "replay.relabel: expected an env that shows the last observation of an episode, "
                f"got {env.env}, which resets "
                "in the same step: make it with "
                "autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP"
            )
        reward = _method(env, "compute_reward")
        if reward is None:
            raise ValueError(
                f"replay.relabel: expected an env with compute_reward, got {_raw(env)}, which "
                "has no such method"
            )
        self._reward, self._terminated = reward, _method(env, "compute_terminated")
        self._try()

    def reward(self, achieved: Array, desired: Array) -> Array:
        """Rewards [k] float32 for k rows; each argument is [k, ...]."""
        reward = np.asarray(
            self._ask("compute_reward", self._reward, achieved, desired), np.float32
        )
        if reward.shape != (len(achieved),):
            raise ValueError(
                f"compute_reward: expected rewards of shape [{len(achieved)}] for as many goals at "
                "once, got shape "
                f"{list(reward.shape)}"
            )
        if not np.isfinite(reward).all():
            raise ValueError(
                f"compute_reward: expected finite rewards, got {reward[~np.isfinite(reward)][0]}"
            )
        return reward

    def terminated(self, achieved: Array, desired: Array) -> Array | None:
        """Terminated [k] bool; None if the env does not decide."""
        if self._terminated is None:
            return None
        if self._at_once:
            return np.asarray(
                self._ask("compute_terminated", self._terminated, achieved, desired), np.bool_
            )
        ask = partial(self._ask, "compute_terminated", self._terminated)
        said = [bool(ask(a, d)) for a, d in zip(achieved, desired, strict=True)]
        return np.array(said, np.bool_)

    def close(self) -> None:
        self._env.close()

    def _ask(self, name: str, method: Callable[..., Any], achieved: Array, desired: Array) -> Any:
        """Call the env's method; RuntimeError names the env and the method if it raises."""
        try:
            return method(achieved, desired, {})
        except Exception as error:
            raise RuntimeError(
                f"replay.relabel: {_raw(self._env)}: {name} of goals of shape "
                f"{list(np.shape(achieved))}, with info={{}}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _try(self) -> None:
        """Play up to an episode: do its rewards equal ``compute_reward`` of its steps?"""
        raw = _raw(self._env)
        told: list[list[Array]] = []
        raw.action_space.seed(1)  # not the env's seed, or both may draw the same
        raw.reset(seed=0)
        while len(told) < EPISODE:
            obs, reward, terminated, truncated, _ = raw.step(raw.action_space.sample())
            # Copied, since an env may show one array again and again.
            told.append([np.array(x) for x in (obs["achieved_goal"], obs["desired_goal"], reward)])
            if np.any(terminated) or np.any(truncated):
                break
        # The one row of a vector env; at least two goals, since several are judged at once.
        steps = told if len(told) > 1 else told * 2
        achieved, desired, rewards = (np.stack(x) for x in zip(*steps, strict=True))
        if isinstance(self._env, GymnasiumEnv):
            achieved, desired = achieved[:, 0], desired[:, 0]
        rewards = rewards.reshape(-1)
        try:
            said = self.reward(achieved, desired)
            ended: Any = (
                False if self._terminated is None else self._terminated(achieved, desired, {})
            )
        except Exception as error:
            cause = error.__cause__ or error
            raise ValueError(
                f"replay.relabel: expected {raw} to judge {len(achieved)} goals at once by "
                "compute_reward and "
                f"compute_terminated with info={{}}: {type(cause).__name__}: {cause}"
            ) from error
        self._at_once = np.shape(ended) == (len(achieved),)
        if (wrong := ~np.isclose(said, rewards, rtol=1e-4, atol=1e-6)).any():
            at = int(wrong.argmax())
            raise ValueError(
                f"replay.relabel: {raw}: expected compute_reward to give the step's reward, "
                f"{float(rewards[at]):g} at "
                f"step {at + 1} of an episode, got {said[at]:g}: a wrapper that changes rewards "
                "needs a compute_reward that does the same"
            )


def _raw(env: LoopEnv | GymnasiumEnv) -> Any:
    return env.envs[0] if isinstance(env, LoopEnv) else env.env


def _method(env: LoopEnv | GymnasiumEnv, name: str) -> Callable[..., Any] | None:
    """The method of the outermost wrapper that has it."""
    raw = _raw(env)
    if isinstance(env, LoopEnv):
        return raw.get_wrapper_attr(name) if raw.has_wrapper_attr(name) else None
    return foreign.attribute(raw.unwrapped, name)  # type: ignore[no-any-return]
