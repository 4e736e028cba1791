"""Envs of which one attribute raises, or is something strange; made by functions that ``make`` calls."""  # noqa: E501

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from tests.envs import rounds
from tests.envs.planted import Sound


def broken(kind: type, name: str, *args: Any, **kwargs: Any) -> Any:
    """An instance whose attribute ``name`` raises RuntimeError; with the name "*" every attribute
    that the class has not raises KeyError, with "mock" each is a Mock.
    """

    def raises(self: object) -> Any:
        raise RuntimeError("this attribute is not for you")

    def missing(self: object, attribute: str) -> Any:
        raise KeyError(attribute)

    def mocked(self: object, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return Mock()

    if name in ("*", "mock"):
        members: dict[str, Any] = {"__getattr__": missing if name == "*" else mocked}
    else:
        members = {name: property(raises, lambda self, value: None)}
    return type("Broken", (kind,), members)(*args, **kwargs)


class Unseeded(Sound):
    """An env that never draws a number."""

    def random(self) -> Any:
        return np.full(3, 0.01)


def single(name: str) -> Any:
    return broken(Unseeded if name == "np_random" else Sound, name)


def vector(name: str, num_envs: int) -> Any:
    return broken(CartPoleVectorEnv, name, num_envs)


def parallel(name: str) -> Any:
    return broken(rounds.Sound, name)


class Plain:
    """An env with Gymnasium's methods that is none of Gymnasium's."""

    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, False, False, {}


def other(name: str) -> Any:
    return broken(Plain, name)


def mock() -> Any:
    return Mock()
