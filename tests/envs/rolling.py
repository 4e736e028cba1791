"""Shared by the tests of envs: a scripted env, and envs rolled out into rows and trajectories."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from equipoise import tree
from equipoise.envs import make
from equipoise.types import EnvFactory, Trajectory

# (length, terminated, truncated) of episodes in turn
SCRIPT = ((2, True, False), (1, False, True), (3, True, True))


class Scripted(gymnasium.Env[Any, Any]):
    """Observation [2]: episode and t, as float64; reward: 10 episode + t."""

    observation_space = spaces.Box(0, 100, (2,), np.float64)
    action_space = spaces.Discrete(3)

    def __init__(self, shift: int = 0) -> None:
        self.episode, self.shift = -1, shift

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return np.array([self.episode, 0.0]), {"noise": self.t}

    def step(self, action: Any) -> Any:
        length, terminated, truncated = SCRIPT[(self.episode + self.shift) % 3]
        self.t += 1
        assert self.t <= length, "stepped beyond its end"
        end = self.t == length
        return (
            np.array([self.episode, self.t], float),
            10.0 * self.episode + self.t,
            end and terminated,
            end and truncated,
            {},
        )


class Recording(gymnasium.Env[Any, Any]):
    """Keeps the very action objects it is given; ``space`` says which kind."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)

    def __init__(self, space: str = "box") -> None:
        self.action_space: Any = {
            "box": spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 2.0]), dtype=np.float64),
            "discrete": spaces.Discrete(3, start=5),
            "many": spaces.MultiDiscrete([2, 3]),
        }[space]
        self.got: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.got.append(action)
        return np.zeros(1, np.float32), 0.0, False, False, {}


def two_scripted(mode: str = "NextStep") -> SyncVectorEnv:
    return SyncVectorEnv([Scripted, lambda: Scripted(1)], autoreset_mode=mode)


def env_of(target: str, streams: Any = 4, seed: int = 0, **kwargs: Any) -> Any:
    streams = np.arange(streams) if isinstance(streams, int) else np.asarray(streams)
    return make(EnvFactory(target=target, kwargs=kwargs), streams=streams, seed=seed)


def rows(env: Any, actions: Any) -> dict[str, Any]:
    """{name: [len(actions) + 1, B, ...]}, the first of them the reset; ``actions`` [n, B, ...]."""
    seen: dict[str, list[Any]] = {}
    for action in (None, *actions):
        if action is not None:
            env.send(action, env.ts.stream)
        for name, value in env.recv().rows().items():
            seen.setdefault(name, []).append(tree.map(np.array, value))
    return {
        name: tree.map(lambda *leaves: np.stack(leaves), *values) for name, values in seen.items()
    }


def unrolls(env: Any, steps: int, count: int, seed: int = 0) -> Iterator[Trajectory]:
    """``count`` trajectories of ``steps`` rows with random discrete actions, aligned as
    ``types.Trajectory`` says.
    """
    rng = np.random.default_rng(seed)
    ts = env.recv()
    batch = len(ts.stream)
    obs, first = ts.obs.copy(), ts.first.copy()
    for n in range(count):
        edges: dict[str, list[Any]] = {"obs": [obs], "first": [first]}
        done: dict[str, list[Any]] = {"action": [], "reward": [], "mask": [], "bootstrap": []}
        for _ in range(steps):
            action = rng.integers(env.spec.action.n, size=batch)
            env.send(action, ts.stream)
            ts = env.recv()
            for key, value in (
                ("action", action),
                ("reward", ts.reward),
                ("mask", ts.valid),
                ("bootstrap", ~ts.terminated),
            ):
                done[key].append(value.copy())
            obs, first = ts.obs.copy(), ts.first.copy()
            edges["obs"].append(obs)
            edges["first"].append(first)
        yield Trajectory(
            **{key: np.stack(values) for key, values in (edges | done).items()},
            behaviour={},
            version=np.full((steps, batch), n),
            state={},
            context={"stream": ts.stream.copy(), "start": np.full(batch, n * steps)},
        )
