"""Envs that give one value in one place, of any type, by the interfaces of Gymnasium and
PettingZoo.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

LENGTH = 4  # steps of an episode
N = 2  # envs of a vector env
BOX, MASK = spaces.Box(-9, 9, (2,), np.float32), spaces.Box(-9, 9, (3,), np.float64)
MASKED = spaces.Dict({"x": BOX, "action_mask": MASK})
ACTION = spaces.Discrete(3)


class Foreign:
    """An array of another library, by ``__array__``."""

    def __init__(self, x: Any) -> None:
        self.x = np.asarray(x)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.x


class Packed:
    """An array of another library, by DLPack alone."""

    def __init__(self, x: Any) -> None:
        self.x = np.array(x, np.float32)

    def __dlpack__(self, **given: Any) -> Any:
        return self.x.__dlpack__(**given)

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


class Raising:
    """An array that cannot be read."""

    def __init__(self, x: Any) -> None: ...

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("not now")


def objects(x: Any) -> Any:
    return np.asarray(x).astype(object)


def torched(x: Any, **given: Any) -> Any:
    return torch.tensor(np.asarray(x, np.float32), **given)


TAKEN: dict[str, Callable[[Any], Any]] = {
    "with nothing masked": lambda x: np.ma.array(x, np.float32, mask=np.zeros(np.shape(x), bool)),
    "array": lambda x: np.asarray(x, np.float32),
    "float64": lambda x: np.asarray(x, np.float64),
    "int64": lambda x: np.asarray(x, np.int64),
    "python": lambda x: np.asarray(x).tolist(),
    "tensor": torched,
    "with a gradient": lambda x: torched(x, requires_grad=True),
    "bfloat16": lambda x: torched(x).to(torch.bfloat16),
    "__array__": Foreign,
    "dlpack": Packed,
    "objects": objects,
}
REFUSED: dict[str, Callable[[Any], Any]] = {
    "masked": lambda x: np.ma.array(x, np.float32, mask=np.ones(np.shape(x), bool)),
    "text": lambda x: objects_of(x, str),
    "None": lambda x: None,
    "Decimal": lambda x: objects_of(x, Decimal),
    "Fraction": lambda x: objects_of(x, Fraction),
    "raises": Raising,
    "complex": lambda x: np.asarray(x, complex),
    "one too many axes": lambda x: np.asarray(x, np.float32)[None],
    "dict": lambda x: {"x": x},
    "object": lambda x: object(),
    "a text of numbers": str,
    "ragged": lambda x: [[1.0], 2.0],
}
NO_FLAGS: dict[str, Callable[[Any], Any]] = {
    "nan": lambda x: np.asarray(x) * np.nan,
    "2": lambda x: np.asarray(x) + 2,
    "0.5": lambda x: np.asarray(x) + 0.5,
    "-1": lambda x: np.asarray(x) - 1.0 if not np.any(x) else -np.asarray(x, np.float64),
}
NO_MASKS = NO_FLAGS | {
    "inf": lambda x: np.asarray(x) + np.inf,
    "short": lambda x: np.asarray(x)[..., :2],
    "padded": lambda x: np.ones((*np.shape(x)[:-1], 5)),
    "nothing allowed": lambda x: np.zeros(np.shape(x)),
}
KINDS = TAKEN | REFUSED | NO_MASKS


def objects_of(x: Any, kind: Callable[[Any], Any]) -> Any:
    x = np.asarray(x, object)
    return kind(x.item()) if not x.shape else [objects_of(one, kind) for one in x]


def one_of(x: Any, count: int) -> Any:
    """``count`` times, or itself (0)."""
    return np.stack([np.asarray(x)] * count) if count else np.asarray(x)


class Rules:
    """What the envs here give: ``kind`` is how the value of ``place`` is given, from step ``at``
    on.
    """

    def __init__(self, place: str, kind: str, count: int) -> None:
        self.place, self.make, self.count = place, KINDS[kind], count
        self.space = MASKED if place == "mask" else BOX

    def given(self, place: str, value: Any) -> Any:
        value = one_of(value, self.count)
        return self.make(value) if place == self.place else value

    def obs(self, t: int) -> Any:
        x = self.given("obs" if t else "first obs", np.array([t, 1], np.float32))
        if self.place != "mask":
            return x
        return {"x": x, "action_mask": self.given("mask" if t else "", np.array([1.0, 0.0, 1.0]))}

    def info(self) -> dict[str, Any]:
        info = {"score": self.given("metric", 3.0)} if self.place == "metric" else {}
        return info | (
            {"action_mask": self.given("info mask", np.array([1, 0, 1]))}
            if self.place == "info mask"
            else {}
        )

    def step(self, t: int) -> Any:
        cut = np.bool_(t == LENGTH)
        flags = self.given("terminated", np.bool_(False)), self.given("truncated", cut)
        return self.given("reward", np.float64(1.0)), *flags, self.info()


class One(gymnasium.Env[Any, Any]):
    """The Python env."""

    action_space = ACTION

    def __init__(self, place: str, kind: str) -> None:
        self.rules = Rules(place, kind, 0)
        self.observation_space = self.rules.space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.rules.obs(0), self.rules.info()

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.rules.obs(self.t), *self.rules.step(self.t)


class Many(VectorEnv[Any, Any, Any]):
    """The vector env, whose streams end together."""

    def __init__(self, place: str, kind: str, mode: str = "NextStep", num_envs: int = N) -> None:
        self.rules, self.num_envs, self.metadata = (
            Rules(place, kind, num_envs),
            num_envs,
            {"autoreset_mode": AutoresetMode(mode)},
        )
        self.single_observation_space, self.single_action_space = self.rules.space, ACTION
        self.observation_space = batch_space(self.rules.space, num_envs)
        self.action_space = batch_space(ACTION, num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.rules.obs(0), self.rules.info()

    def step(self, action: Any) -> Any:
        rules = self.rules
        if self.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP:
            self.t = 0 if self.t == LENGTH else self.t + 1
            reward, *rest = rules.step(self.t)
            return (
                rules.obs(self.t),
                reward if self.t else rules.given("reward", np.float64(0)),
                *rest,
            )
        self.t += 1
        t, self.t = self.t, self.t % LENGTH
        reward, terminated, truncated, info = rules.step(t)
        if t == LENGTH:
            last = rules.given("final_obs", np.array([t, 1], np.float32))
            info = info | {"final_obs": rules.obs(t) if rules.place == "mask" else last}
            info = info | {
                "final_info": {k: info[k] for k in ("action_mask", "score") if k in info}
            }
        return rules.obs(self.t), reward, terminated, truncated, info


class Duo:
    """The parallel env."""

    metadata: Any
    possible_agents: list[str]

    def __init__(self, place: str, kind: str) -> None:
        self.rules, self.metadata, self.possible_agents = (
            Rules(place, kind, 0),
            {"name": "duo"},
            ["red", "blue"],
        )
        self.observations = dict.fromkeys(self.possible_agents, self.rules.space)
        self.actions = {agent: spaces.Discrete(3) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> Any:
        return self.observations[agent]

    def action_space(self, agent: str) -> Any:
        return self.actions[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.t, self.agents = 0, list(self.possible_agents)
        return {agent: self.rules.obs(0) for agent in self.agents}, {
            agent: {} for agent in self.agents
        }

    def step(self, actions: Any) -> Any:
        self.t += 1
        both = list(self.agents)
        reward, terminated, truncated, _ = self.rules.step(self.t)
        self.agents = [] if self.t == LENGTH else self.agents
        parts: tuple[Any, ...] = (self.rules.obs(self.t), reward, terminated, truncated, {})
        return tuple(dict.fromkeys(both, part) for part in parts)

    def close(self) -> None: ...


class OldReset(Duo):
    """``reset`` gives observations alone."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset()[0]


class OldStep(Duo):
    """``step`` gives four."""

    def step(self, actions: Any) -> Any:
        seen, reward, end, _, info = super().step(actions)
        return seen, reward, end, info


class Lists(Duo):
    """``step`` gives lists."""

    def step(self, actions: Any) -> Any:
        return tuple(list(part.values()) for part in super().step(actions))


class Dicts(Duo):
    """Spaces by agent, and no methods."""

    observation_space: Any = {"red": BOX, "blue": BOX}
    action_space: Any = {"red": ACTION, "blue": ACTION}


class NoNames(Duo):
    """No ``possible_agents``."""

    def __init__(self, place: str, kind: str) -> None:
        super().__init__(place, kind)
        self.agents = self.possible_agents
        del self.possible_agents


class Later(Duo):
    """No ``possible_agents``, and ``agents`` only after a reset."""

    def __init__(self, place: str, kind: str) -> None:
        super().__init__(place, kind)
        del self.possible_agents


class Numbers(Duo):
    """A number of agents."""

    def __init__(self, place: str, kind: str) -> None:
        super().__init__(place, kind)
        self.possible_agents: Any = 2


class NoSpaces(Duo):
    """Spaces that are none."""

    def observation_space(self, agent: str) -> Any:
        return None


class NoAgents(Duo):
    """No ``agents`` after a reset."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        given = super().reset()
        del self.agents
        return given
