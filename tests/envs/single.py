"""Python envs of one stream for the tests of resuming: known, replayable, and not to be trusted."""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces, wrappers


class Walk(gymnasium.Env[Any, Any]):
    """Nothing is known of it: a walk with noise of its own generator, until it is far out. Actions
    [2].
    """

    observation_space: Any = spaces.Dict(
        {"at": spaces.Box(-9, 9, (2,), np.float64), "n": spaces.Discrete(1000)}
    )
    action_space: Any = spaces.Box(-1, 1, (2,), np.float32)
    limit = 3.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.at, self.n = self.np_random.normal(size=2), 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        assert abs(self.at).max() <= self.limit or not self.n, "stepped beyond its end"
        self.at = self.at + 0.5 * action + 0.5 * self._noise()
        self.n += 1
        return self._obs(), float(self.at.sum()), bool(abs(self.at).max() > self.limit), False, {}

    def _noise(self) -> Any:
        return self.np_random.normal(size=2)

    def _obs(self) -> Any:
        return {"at": self.at.clip(-9, 9), "n": self.n % 1000}


class Endless(Walk):
    """The first stream's episode never ends, the others' do."""

    def __init__(self, stream: int) -> None:
        self.limit = np.inf if stream == 0 else 3.0


class Haunted(Walk):
    """Stream 1 has randomness that no seed reaches."""

    def __init__(self, stream: int, limit: float = 3.0) -> None:
        self.stream, self.limit = stream, limit

    def _noise(self) -> Any:
        return np.array([random.gauss(0, 1), 0.0]) if self.stream == 1 else super()._noise()


class Remembering(Walk):
    """What a step pays depends on episodes before; no observation shows it."""

    bonus = 0.0

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        self.bonus += terminated
        return obs, reward + self.bonus, terminated, truncated, info


class Named(Walk):
    snapshot_attributes = ("at", "n")


class Offering(Walk):
    def get_state(self) -> Any:
        return {"position": {"at": self.at}, "n": np.array(self.n)}

    def set_state(self, state: Any) -> None:
        self.at, self.n = state["position"]["at"], int(state["n"])


class Opaque(Walk):
    snapshot_attributes = ("np_random",)


class Fog(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper of which nothing is known: it counts, and pays for it."""

    count = 0

    def reset(self, **kwargs: Any) -> Any:
        self.count = 0
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        self.count += 1
        return obs, float(reward) + self.count, terminated, truncated, info


class Known(Fog):
    snapshot_attributes = ("count",)


def wrapped(id: str, around: str = "", stack: int = 0, **kwargs: Any) -> Any:
    env: Any = gymnasium.make(id, disable_env_checker=True, **kwargs)
    if around == "atari":
        env = wrappers.AtariPreprocessing(env, noop_max=5, terminal_on_life_loss=True)
    elif around == "norm":
        env = wrappers.NormalizeReward(wrappers.NormalizeObservation(env))
    elif around:
        env = {"fog": Fog, "known": Known}[around](env)
    return wrappers.FrameStackObservation(env, stack) if stack else env
