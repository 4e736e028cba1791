"""Envs with one fault each, planted in ``Sound``, which has none. The tests of ``check`` name each
fault and its place.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

UNIT = spaces.Box(-1.0, 1.0, (3,), np.float32)


class Endless(gymnasium.Env[Any, Any]):
    """Nothing ends it, and nothing says so."""

    observation_space: spaces.Space[Any] = UNIT
    action_space: spaces.Space[Any] = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), 1.0, False, False, {}


class Sound(gymnasium.Env[Any, Any]):
    """A point drifts at random and by the action; an episode ends by itself at |x| > 0.9, or is cut
    after 30 steps.
    """

    observation_space: spaces.Space[Any] = UNIT
    action_space: spaces.Space[Any] = spaces.Discrete(3)

    def __init__(self) -> None:
        self.t = self.calls = 0
        self.x = np.zeros(3, np.float32)

    def random(self) -> Any:
        return self.np_random.uniform(-0.1, 0.1, 3)

    def obs(self) -> Any:
        return self.x.copy()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t, self.x = 0, self.random().astype(np.float32)
        self.calls = self.calls if seed is None else 0
        return self.obs(), {}

    def step(self, action: Any) -> Any:
        self.t, self.calls = self.t + 1, self.calls + 1
        self.x = np.clip(self.x + self.random() + 0.1 * (int(action) - 1), -1, 1).astype(np.float32)
        terminated = bool(np.abs(self.x).max() > 0.9)
        return self.obs(), float(self.x[0]), terminated, not terminated and self.t >= 30, {}


def with_step(change: Any) -> type[Sound]:
    """``change(env, obs, reward, terminated, truncated, info)`` is what step returns instead."""

    class Changed(Sound):
        def step(self, action: Any) -> Any:
            return change(self, *super().step(action))

    return Changed


def with_obs(space: spaces.Space[Any], change: Any) -> type[Sound]:
    """``change(env, x)`` is the observation, of reset and of step."""

    class Changed(Sound):
        observation_space = space

        def obs(self) -> Any:
            return change(self, super().obs())

    return Changed


# ------------------------------------------------------------------------------------- observations

PARTS = spaces.Dict({"position": UNIT, "speed": spaces.Box(-1.0, 1.0, (), np.float32)})


def _nan(env: Sound, x: Any) -> Any:
    x[2] = np.nan if env.calls >= 17 else x[2]
    return x


NotFinite = with_obs(UNIT, _nan)
OutsideItsSpace = with_obs(
    PARTS,
    lambda env, x: {"position": x + np.float32(10 * (env.calls == 3)), "speed": np.float32(0)},
)
OutsideDiscrete = with_obs(spaces.Discrete(5, start=1), lambda env, x: min(env.calls, 6))
MissingKey = with_obs(
    PARTS, lambda env, x: {"position": x} | ({"speed": np.float32(0)} if env.calls != 4 else {})
)
SurplusKey = with_obs(PARTS, lambda env, x: {"position": x, "speed": np.float32(0), "more": 1})
WrongShape = with_obs(UNIT, lambda env, x: x if env.calls != 2 else np.append(x, np.float32(0)))
WrongDtype = with_obs(spaces.Box(0, 255, (3,), np.uint8), lambda env, x: 100 * np.abs(x))
OtherDtype = with_obs(UNIT, lambda env, x: x.astype(np.float64))
AList = with_obs(UNIT, lambda env, x: x.tolist())
Ragged = with_obs(UNIT, lambda env, x: [[1.0], [1.0, 2.0]])
FloatImage = with_obs(
    spaces.Box(0, 255, (3, 2, 2), np.float32),
    lambda env, x: np.full((3, 2, 2), abs(x[0]), np.float32),
)
Constant = with_obs(
    spaces.Box(np.array([-1, 0]), np.array([1, 0]), dtype=np.float32),
    lambda env, x: x[:2] * np.array([1, 0], np.float32),
)
AText = with_obs(spaces.Text(3), lambda env, x: "abc")


def upside_down() -> gymnasium.Env[Any, Any]:
    space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    space.low[1] = 2.0  # its constructor would refuse
    return with_obs(space, lambda env, x: x)()


class LocalSpace(spaces.Box):
    def __init__(self) -> None:
        super().__init__(-1.0, 1.0, (3,), np.float32)
        self.rule = lambda x: x


CannotTravel = with_obs(LocalSpace(), lambda env, x: x)


class OverwritesInPlace(Sound):
    def obs(self) -> Any:
        self.buffer = getattr(self, "buffer", np.zeros(3, np.float32))
        self.buffer[:] = self.x
        return self.buffer


class SharesItsBuffer(Sound):
    buffer = np.zeros(3, np.float32)

    def obs(self) -> Any:
        self.buffer[:] = self.x
        return self.buffer


# ----------------------------------------------------------------------------------- what step says

InfiniteReward = with_step(
    lambda env, obs, reward, *rest: (obs, np.inf if env.calls == 5 else reward, *rest)
)
RewardOfOne = with_step(lambda env, obs, reward, *rest: (obs, np.array([reward]), *rest))
NoReward = with_step(
    lambda env, obs, reward, *rest: (obs, None if env.calls == 6 else reward, *rest)
)
NeverSaysTerminated = with_step(
    lambda env, obs, reward, terminated, *rest: (obs, reward, terminated or None, *rest)
)
OneForTrue = with_step(
    lambda env, obs, reward, terminated, *rest: (obs, reward, int(terminated), *rest)
)
NoInfo = with_step(
    lambda env, obs, reward, terminated, truncated, info: (obs, reward, terminated, truncated, None)
)
OldApi = with_step(
    lambda env, obs, reward, terminated, truncated, info: (
        obs,
        reward,
        terminated or truncated,
        info,
    )
)
TwoValues = with_step(lambda env, obs, reward, *rest: (obs, reward))
LimitInInfo = with_step(
    lambda env, obs, reward, terminated, truncated, info: (
        obs,
        reward,
        terminated or truncated,
        False,
        {"TimeLimit.truncated": truncated},
    )
)


class ClockAsEnd(Sound):
    max_steps = 10

    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        return obs, reward, self.t >= self.max_steps, False, {}


class RaisesAtSeven(Sound):
    def step(self, action: Any) -> Any:
        self.inverse = 1 / (self.calls - 6)
        return super().step(action)


class OnlyObs(Sound):
    def reset(self, **given: Any) -> Any:
        return super().reset(**given)[0]


class Stalls(Sound):
    def step(self, action: Any) -> Any:
        if self.calls % 20 == 19:
            time.sleep(0.06)
        return super().step(action)


class ThatAction(Sound):
    def __init__(self, which: str = "unbounded") -> None:
        super().__init__()
        if which == "unbounded":
            self.action_space = spaces.Box(-np.inf, np.inf, (), np.float32)
        elif which == "one":
            self.action_space = spaces.Discrete(1)
        else:
            self.action_space = spaces.Text(3)

    def step(self, action: Any) -> Any:
        return super().step(1)


class WritesToItsAction(Sound):
    """No fault: an env may do so."""

    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def step(self, action: Any) -> Any:
        action *= 0.5
        self.x = self.x + action
        return super().step(1)


# --------------------------------------------------------------------------------------- randomness


class UnseededGenerator(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng()

    def random(self) -> Any:
        return self.rng.uniform(-0.1, 0.1, 3)


class FixedGenerator(UnseededGenerator):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)


class NewGeneratorEachReset(UnseededGenerator):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.rng = np.random.default_rng(seed)
        return super().reset(seed=seed)


class NewGeneratorAndNoEnd(NewGeneratorEachReset):
    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, False, info


class GlobalGenerator(Sound):
    def step(self, action: Any) -> Any:
        if self.calls == 3:
            self.x += np.random.uniform(-0.1, 0.1, 3).astype(np.float32)
        return super().step(action)


class Clockwork(Sound):
    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, float(time.perf_counter_ns() if self.calls >= 9 else 0), *rest


class Declared(Clockwork):
    """It says so itself, in its registration."""


class KeepsItsClock(Sound):
    def reset(self, **given: Any) -> Any:
        t = self.t
        result = super().reset(**given)
        self.t = t
        return result


class SharedByAll(Sound):
    shared = np.zeros(3)

    def reset(self, **given: Any) -> Any:
        type(self).shared = np.zeros(3)
        return super().reset(**given)

    def random(self) -> Any:
        type(self).shared = self.shared + 0.01
        return super().random() + self.shared


# -------------------------------------------------------------------------------------- vector envs


def many(num_envs: int, mode: str = "NextStep") -> SyncVectorEnv:
    return SyncVectorEnv([Sound] * num_envs, autoreset_mode=mode)


def many_same_step(num_envs: int) -> SyncVectorEnv:
    return many(num_envs, "SameStep")


class Vector(VectorEnv[Any, Any, Any]):
    """Wraps a SyncVectorEnv of ``Sound`` and claims NEXT_STEP."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    mode = "SameStep"

    def __init__(self, num_envs: int) -> None:
        self.inner = many(num_envs, self.mode)
        self.num_envs = num_envs
        for name in (
            "observation_space",
            "action_space",
            "single_observation_space",
            "single_action_space",
        ):
            setattr(self, name, getattr(self.inner, name))
        self.over = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        self.over[:] = False
        return self.inner.reset(seed=seed)

    def step(self, actions: Any) -> Any:
        return self.inner.step(actions)


class RewardAfterTheEnd(Vector):
    """SAME_STEP in truth."""


class ActsAfterTheEnd(Vector):
    """SAME_STEP in truth, with the reward of a NEXT_STEP env."""

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(actions)
        reward, self.over = np.where(self.over, 0.0, reward), terminated | truncated
        return obs, reward, terminated, truncated, info


class GivesWhatIsFinal(Vector):
    """As it should be."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}


class NothingIsFinal(GivesWhatIsFinal):
    def step(self, actions: Any) -> Any:
        return *super().step(actions)[:4], {}


class SumsRewards(Vector):
    """The rewards of all streams as one number, which numpy would spread."""

    mode = "NextStep"

    def step(self, actions: Any) -> Any:
        obs, reward, *rest = super().step(actions)
        return obs, reward.sum(), *rest


class BeyondItsLimit(Vector):
    mode = "NextStep"

    def __init__(self, num_envs: int, max_episode_steps: int) -> None:
        super().__init__(num_envs)


gymnasium.register("faulty/OldApi-v0", f"{__name__}:OldApi", max_episode_steps=20)
gymnasium.register("faulty/Declared-v0", f"{__name__}:Declared", nondeterministic=True)
gymnasium.register(
    "faulty/Limit-v0", vector_entry_point=f"{__name__}:BeyondItsLimit", max_episode_steps=5
)
