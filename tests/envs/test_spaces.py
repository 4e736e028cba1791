"""Spaces as specs, and nested observations as trees."""

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from equipoise import tree
from equipoise.envs import action_spec, observation_spec
from equipoise.envs.checks import WrongValue
from equipoise.tree import ArraySpec
from tests.envs.rolling import env_of, rows


class Nested(gymnasium.Env[Any, Any]):
    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (4, 4, 1), np.uint8),
            "own": spaces.Dict({"x": spaces.Box(-1, 1, ()), "k": spaces.Discrete(9)}),
        }
    )
    action_space = spaces.Discrete(2)

    def __init__(self, stream: int) -> None:
        self.stream = stream

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.t = 0
        return self.obs(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.obs(), 0.0, False, False, {}

    def obs(self) -> Any:
        return {
            "own": {"k": self.t, "x": np.float32(self.stream / 8)},
            "image": np.full((4, 4, 1), 10 * self.stream + self.t, np.uint8),
        }


class Tupled(Nested):
    observation_space: Any = spaces.Tuple([spaces.Discrete(2)])


class Many(Nested):
    action_space: Any = spaces.MultiDiscrete([2, 3])


class Whole(Nested):
    action_space: Any = spaces.Box(0, 9, (2,), np.int64)


class Bytes(Nested):
    """Says uint8, gives float64."""

    observation_space: Any = spaces.Box(0, 255, (2,), np.uint8)

    def obs(self) -> Any:
        return np.zeros(2)


@pytest.mark.parametrize(
    ("space", "spec"),
    [
        (spaces.Box(-1, 1, (3,), np.float64), ArraySpec((3,), "float32")),
        (spaces.Box(-1, 1, (3,), np.float32), ArraySpec((3,), "float32")),
        (spaces.Box(-1, 1, (), np.float16), ArraySpec((), "float32")),
        (spaces.Box(0, 255, (84, 84, 4), np.uint8), ArraySpec((84, 84, 4), "uint8")),
        (spaces.Box(-5, 5, (2,), np.int64), ArraySpec((2,), "int64")),
        (spaces.Discrete(4, start=2), ArraySpec((), "int64")),
    ],
)
def test_observation_spec(space, spec):
    assert observation_spec(space) == spec
    assert observation_spec(spaces.Dict({"a": space, "b": spaces.Dict({"c": space})})) == {"a": spec, "b": {"c": spec}}


def test_action_spec():
    assert action_spec(spaces.Discrete(4, start=2)) == ArraySpec((), "int64")
    assert action_spec(spaces.Box(-1, 1, (2, 3), np.float64)) == ArraySpec((2, 3), "float32")


@pytest.mark.parametrize("name", ["Tupled", "Many", "Whole"])
def test_other_spaces_are_refused_by_name(name):
    with pytest.raises(ValueError, match=rf"test_spaces:{name}: \w+ space .* is not supported; supported: Box"):
        env_of(f"{__name__}:{name}", 1)


@pytest.mark.parametrize("vector", [False, True])
def test_nested_observations_become_trees(vector):
    env = env_of(f"{__name__}:nested_vector" if vector else f"{__name__}:Nested", [2, 5])
    got = rows(env, np.zeros((3, 2), int))["obs"]
    assert {path: leaf.dtype.name for path, leaf in tree.items(got)} == {"image": "uint8", "own/x": "float32", "own/k": "int64"}
    assert got["own"]["k"].tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert got["own"]["x"][0].tolist() == [0.25, 0.625]
    assert got["image"][3, 1, 0, 0, 0] == 53


def nested_vector(streams: Any) -> Any:
    return gymnasium.vector.SyncVectorEnv([functools.partial(Nested, int(s)) for s in streams])


def test_floats_do_not_become_bytes():
    with pytest.raises(WrongValue, match=r"stream 0: obs: expected uint8 \[2\], got float64 \[2\]"):
        env_of(f"{__name__}:Bytes", 1).recv()
