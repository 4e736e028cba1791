"""Envs that fail now and then, each in one way, and the ruler that fails where ``fails`` says."""

from __future__ import annotations

import os
import resource
import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from equipoise.envs.toys.ruler import Ruler, episode

BOX = spaces.Box(-1, 1, (2,), np.float32)
ANSWERS: dict[str, Any] = {  # what a step shows instead of its observation
    "nan": np.array([0.0, np.nan], np.float32),
    "inf": np.array([np.inf, -np.inf], np.float32),
    "shape": np.zeros(3, np.float32),
    "text": "left",
    "nothing": None,
    "ragged": [[0.0], 1.0],
    "outside": np.array([0.0, 1.5], np.float32),
}
REWARDS: dict[str, Any] = {
    "reward nan": float("nan"),
    "reward inf": float("inf"),
    "reward text": "much",
    "reward [1]": [1.0],
}


class Faulty(gymnasium.Env[Any, Any]):
    """Fine but for one in ``every`` steps, drawn from its generator; there it is wrong ``how``
    says.

    ``on_reset``: instead, each reset of that number is wrong. An episode has ``length`` steps;
    reward 1 a step.
    """

    observation_space: Any = BOX
    action_space: Any = spaces.Discrete(2)

    def __init__(
        self,
        how: str = "raise",
        every: int = 20,
        on_reset: int = 0,
        length: int = 30,
        stream: int = 0,
    ) -> None:
        self.how, self.every, self.on_reset, self.length, self.stream = (
            how,
            every,
            on_reset,
            length,
            stream,
        )
        self.resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.resets = 0, self.resets + 1
        return self._obs(self.resets == self.on_reset), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        wrong = not self.on_reset and self.np_random.random() < 1 / self.every
        reward = REWARDS.get(self.how, 1.0) if wrong else 1.0
        return self._obs(wrong), reward, False, self.t >= self.length, {}

    def _obs(self, wrong: bool) -> Any:
        right = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        if wrong and self.how == "raise":
            raise RuntimeError("the reactor is leaking")
        if wrong and self.how == "hang":
            time.sleep(10_000)
        if wrong and self.how == "list":
            return right.astype(np.float64).tolist()
        return ANSWERS.get(self.how, right) if wrong else right


class Named(Faulty):
    """The same with a Dict of a Box and a Discrete; "discrete": one that does not exist."""

    observation_space = spaces.Dict({"box": BOX, "which": spaces.Discrete(3, start=1)})

    def _obs(self, wrong: bool) -> Any:
        if wrong and self.how == "key":
            return {"box": np.zeros(2, np.float32)}
        which = 4 if wrong and self.how == "discrete" else 1 + self.t % 3
        return {"box": super()._obs(wrong), "which": which}


class Leaky(Faulty):
    """Each step opens a file that nobody closes, in a process that may have ``most`` open."""

    def __init__(self, most: int = 400, **kwargs: Any) -> None:
        super().__init__("none", **kwargs)
        self.most = most

    def step(self, action: Any) -> Any:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (self.most, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        )
        os.open(os.devnull, os.O_RDONLY)
        return super().step(action)


class BadEnd(Faulty):
    """Its close raises, too."""

    def close(self) -> None:
        raise OSError("the door is stuck")


class Counted(gymnasium.Env[Any, Any]):
    """Observation: (seed of its last seeded reset, steps since it was made); stream 1 raises in
    step ``at`` of its life.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space: Any = spaces.Discrete(2)
    made: list[Any] = []

    def __init__(self, stream: int, at: int = 3) -> None:
        self.stream, self.at, self.steps, self.seed = stream, at, 0, 0
        self.actions: list[int] = []
        self.made.append(self)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seed = seed if seed is not None else self.seed
        return np.array([self.seed, self.steps], float), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.actions.append(int(action))
        if self.stream == 1 and self.steps == self.at:
            raise ValueError(f"step {self.steps}")
        return np.array([self.seed, self.steps], float), 1.0, False, False, {}


class FaultyVector(VectorEnv[Any, Any, Any]):
    """A native vector env, exact: stream i's observation is (t, 0) / 100; episodes of 5 + i steps,
    reward 1.

    ``wrong``: (stream, step since birth, what): that row's observation, or "reward", is nan; or
    "discrete" etc.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    snapshot_attributes = ("t", "done", "step_count")
    single_observation_space, single_action_space = BOX, spaces.Discrete(2)

    def __init__(self, num_envs: int, wrong: Any = (), raise_at: int = 0) -> None:
        self.num_envs, self.wrong_at, self.raise_at = num_envs, wrong, raise_at
        self.observation_space, self.action_space = (
            batch_space(BOX, num_envs),
            batch_space(spaces.Discrete(2), num_envs),
        )
        self.t, self.done, self.step_count = (
            np.zeros(num_envs, int),
            np.zeros(num_envs, bool),
            np.array(0),
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.done = np.zeros(self.num_envs, int), np.zeros(self.num_envs, bool)
        return self._obs(), {}

    def step(self, actions: Any) -> Any:
        self.step_count = self.step_count + 1
        if int(self.step_count) == self.raise_at:
            raise RuntimeError("all at once")
        reward = np.where(self.done, 0.0, 1.0)
        self.t = np.where(self.done, 0, self.t + 1)
        self.done = self.t >= 5 + np.arange(self.num_envs)
        obs = self._obs()
        for stream, step, what in self.wrong_at:
            if step == int(self.step_count):
                if what == "reward":
                    reward[stream] = np.nan
                else:
                    obs[stream] = ANSWERS[what]
        return obs, reward, self.done.copy(), np.zeros(self.num_envs, bool), {}

    def _obs(self) -> Any:
        return np.stack([self.t / 100, np.zeros(self.num_envs)], 1).astype(np.float32)


def in_sync(
    num_envs: int, streams: Any, mode: str = "NextStep", **kwargs: Any
) -> VectorEnv[Any, Any, Any]:
    return SyncVectorEnv(
        [partial(Faulty, stream=int(s), **kwargs) for s in streams], autoreset_mode=mode
    )


def fails(stream: Any, number: Any, t: Any) -> Any:
    """Whether the ruler's step from t (or, at its end, the reset after it) raises: about one in 30,
    elementwise.
    """
    with np.errstate(over="ignore"):
        x = np.asarray(stream).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.asarray(
            number
        ).astype(np.uint64)
        x = (x * np.uint64(64) + np.asarray(t).astype(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
        chosen = (x >> np.uint64(40)) % np.uint64(30) == 0
    # the first step of all works: else none would
    return chosen & ((np.asarray(number) > 0) | (np.asarray(t) > 0))


class FaultyRuler(Ruler):
    """Raises where ``fails`` says; made anew it begins with episode 0 again."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is None:
            length, _, _ = episode(self.stream, self.number, self.longest)
            if fails(self.stream, self.number, int(length)):
                raise RuntimeError(f"no episode after {self.number}")
        return super().reset(seed=seed)

    def step(self, action: int) -> Any:
        if fails(self.stream, self.number, self.t):
            raise RuntimeError(f"stream {self.stream} breaks at {self.number}, {self.t}")
        return super().step(action)
