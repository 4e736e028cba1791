"""Spaces as specs, and nested observations as trees."""

import functools
from collections import OrderedDict
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from equipoise import tree
from equipoise.envs import action_spec, observation_spec
from equipoise.envs.failures.capsule import Failures, read
from equipoise.envs.failures.reproduce import reproduce
from equipoise.envs.failures.row_checks import WrongValue
from equipoise.envs.hints import UnsupportedSpace
from equipoise.envs.spaces import ActionForm
from equipoise.record import statefile
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


class Written(Nested):
    observation_space: Any = spaces.Dict(
        {"own": spaces.Tuple([spaces.Discrete(2), spaces.Text(3)])}
    )


class Sequenced(Nested):
    action_space: Any = spaces.Tuple([spaces.Sequence(spaces.Discrete(2))])


class Empty(Nested):
    observation_space: Any = spaces.Dict({"a": spaces.Dict({})})


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
        (spaces.Box(0, 1, (2,), np.bool_), ArraySpec((2,), "bool")),  # type: ignore[arg-type]
        (spaces.Box(0, 9, (2,), np.uint16), ArraySpec((2,), "uint16")),
        (spaces.Discrete(4, start=2), ArraySpec((), "int64")),
        (spaces.MultiDiscrete(np.array([[2, 3]]), dtype="uint8"), ArraySpec((1, 2), "uint8")),
        (spaces.MultiBinary(3), ArraySpec((3,), "int8")),
        (spaces.MultiBinary([3, 2]), ArraySpec((3, 2), "int8")),
    ],
)
def test_observation_spec(space, spec):
    assert observation_spec(space) == spec
    assert observation_spec(spaces.Dict({"a": space, "b": spaces.Dict({"c": space})})) == {
        "a": spec,
        "b": {"c": spec},
    }
    assert observation_spec(spaces.Tuple([space, spaces.Tuple([space])])) == {
        "0": spec,
        "1": {"0": spec},
    }


def test_action_spec():
    assert action_spec(spaces.Discrete(4, start=2)) == ArraySpec((), "int64")
    assert action_spec(spaces.Box(-1, 1, (2, 3), np.float64)) == ArraySpec((2, 3), "float32")
    assert action_spec(
        spaces.Tuple(
            [spaces.MultiDiscrete([2, 3], dtype=np.uint8), spaces.Dict(a=spaces.MultiBinary(4))]
        )
    ) == {
        "0": ArraySpec((2,), "int64"),
        "1": {"a": ArraySpec((4,), "int8")},
    }


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "Written",
            r"observation space Text\(.*\) at obs/own/1 is not supported; supported: "
            r"Box.*ObservationWrapper .*Box of bytes",
        ),
        (
            "Sequenced",
            r"action space Sequence\(.*\) at action/0 is not supported; supported: "
            r"Box.*ActionWrapper .*pad it",
        ),
        (
            "Whole",
            r"action space Box\(.*int64\) is not supported; supported: Box.* can make it a "
            r"MultiDiscrete",
        ),
        (
            "Empty",
            r"observation space Dict\(\) at obs/a is not supported: expected at least one part, "
            r"got none",
        ),
    ],
)
def test_other_spaces_are_refused_by_name_with_what_to_do(name, said):
    with pytest.raises(UnsupportedSpace, match=rf"test_spaces:{name}: {said}"):
        env_of(f"{__name__}:{name}", 1)


# ------------------------------------------------------------------------------------------ actions

HYBRID = spaces.Tuple(
    [
        spaces.Discrete(3, start=-1),
        spaces.Dict(
            OrderedDict(
                z=spaces.MultiDiscrete([2, 3], dtype=np.uint8, start=[1, 0]),
                a=spaces.Box(-1, 1, (), np.float64),
            )
        ),
        spaces.MultiBinary((2, 2)),
        spaces.Box(np.array([-1, 0], np.float16), np.array([1, 2], np.float16), dtype=np.float16),
        spaces.Discrete(4, dtype=np.uint8),
    ]
)


def hybrid_actions(count: int) -> Any:
    """What a policy gives: beyond the bounds of the Boxes, too."""
    return {
        "0": np.arange(count) % 3 - 1,
        "1": {
            "z": np.stack([1 + np.arange(count) % 2, np.arange(count) % 3], 1),
            "a": np.linspace(-3, 3, count, dtype=np.float32),
        },
        "2": np.arange(4 * count).reshape(count, 2, 2).astype(np.int8) % 2,
        "3": np.linspace(-3, 3, 2 * count, dtype=np.float32).reshape(count, 2),
        "4": np.arange(count) % 4,
    }


def test_each_env_gets_what_its_space_contains():
    form = ActionForm(HYBRID, 6)
    given = hybrid_actions(6)
    done = form(given)
    each = list(form.each(done))
    assert all(HYBRID.contains(one) for one in each)
    assert [type(one) for one in each] == [tuple] * 6 and isinstance(each[0][1]["a"], np.ndarray)
    assert [one[1]["z"].tolist() for one in each] == given["1"]["z"].tolist() and each[0][1][
        "z"
    ].dtype == np.uint8
    assert [float(one[1]["a"]) for one in each] == [
        -1.0,
        -1.0,
        np.float32(-0.6),
        np.float32(0.6),
        1.0,
        1.0,
    ]
    assert HYBRID.contains(form.one(done))
    given["1"]["z"][:] = 0  # the caller's own again
    assert each[0][1]["z"].tolist() == [1, 0]


def test_a_vector_env_gets_what_its_batched_space_contains():
    form = ActionForm(HYBRID, 6)
    assert batch_space(HYBRID, 6).contains(form.together(form(hybrid_actions(6))))


def test_an_action_of_another_form_is_named():
    form, given = ActionForm(HYBRID, 2), hybrid_actions(2)
    with pytest.raises(
        ValueError,
        match=r"action/1: expected a dict with the keys \['a', 'z'\], got the keys \['a'\]",
    ):
        form(given | {"1": {"a": given["1"]["a"]}})
    with pytest.raises(
        ValueError, match=r"action/2: expected actions of shape \(2, 2, 2\), got \(2, 4\)"
    ):
        form(given | {"2": np.zeros((2, 4), np.int8)})
    with pytest.raises(ValueError, match="action: expected a dict with the keys .*, got tuple"):
        form((1, 2))


class Insisting(Nested):
    """Its observation tells what it was given; episodes of 9, and no memory beyond them."""

    action_space: Any = HYBRID
    observation_space: Any = spaces.Tuple(
        [spaces.Discrete(10), spaces.Box(-9, 9, (3,), np.float64)]
    )

    def __init__(self) -> None:
        self.last = np.zeros(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        gymnasium.Env.reset(self, seed=seed)
        self.last = np.zeros(3)
        return super().reset()

    def step(self, action: Any) -> Any:
        assert HYBRID.contains(action), action
        self.last = np.array([action[0], action[1]["z"][1], action[1]["a"]])
        if self.t == 7 and action[0] == 1:
            raise RuntimeError("seven and one")
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, self.t == 9, info

    def obs(self) -> Any:
        return self.t, self.last + 0.125 * self.np_random.random()


def insisting_vector(num_envs: int) -> Any:
    return gymnasium.vector.SyncVectorEnv([Insisting] * num_envs, autoreset_mode="NextStep")


# SyncVectorEnv's, for a Box of shape ()
@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")
@pytest.mark.parametrize("target", ["Insisting", "insisting_vector"])
def test_tuples_in_and_out(target):
    env = env_of(f"{__name__}:{target}", 3)
    given = hybrid_actions(5 * 3)
    got = rows(env, [tree.index(given, slice(3 * t, 3 * t + 3)) for t in range(5)])["obs"]
    assert got["0"][:, 1].tolist() == [0, 1, 2, 3, 4, 5] and got["1"].dtype == np.float32
    np.testing.assert_allclose(
        got["1"][1:].reshape(15, 3)[:, :2],
        np.stack([given["0"], given["1"]["z"][:, 1]], 1),
        atol=0.125,
    )


def test_a_replayed_env_takes_its_nested_actions_again():
    env, other = env_of(f"{__name__}:Insisting", 2), env_of(f"{__name__}:Insisting", 2)
    given = hybrid_actions(12)
    rows(env, [tree.index(given, slice(2 * t, 2 * t + 2)) for t in range(5)])
    other.load(statefile.parse(statefile.dump(env.state())))
    assert other.resumed == {"exact": 0, "replay": 2, "restart": 0} and env.spec.resume == "replay"
    for one in (env, other):
        one.send(tree.index(given, slice(10, 12)), one.ts.stream)
    tree.map(np.testing.assert_array_equal, env.recv().obs, other.recv().obs)


def test_a_capsule_keeps_nested_actions_and_replays(tmp_path):
    env = env_of(f"{__name__}:Insisting", 2)
    env.failures = Failures(capsules=tmp_path)
    given = hybrid_actions(30)
    rows(env, [tree.index(given, [t, 1]) for t in (0, 1, 3, 4, 6, 7, 9, 2)])
    (path,) = tmp_path.iterdir()
    capsule = read(path)
    assert (
        sorted(dict(tree.items(capsule.actions))) == ["0", "1/a", "1/z", "2", "3", "4"]
        and capsule.start.kind == "seed"
    )
    assert reproduce(capsule).same


@pytest.mark.parametrize("vector", [False, True])
def test_nested_observations_become_trees(vector):
    env = env_of(f"{__name__}:nested_vector" if vector else f"{__name__}:Nested", [2, 5])
    got = rows(env, np.zeros((3, 2), int))["obs"]
    assert {path: leaf.dtype.name for path, leaf in tree.items(got)} == {
        "image": "uint8",
        "own/x": "float32",
        "own/k": "int64",
    }
    assert got["own"]["k"].tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert got["own"]["x"][0].tolist() == [0.25, 0.625]
    assert got["image"][3, 1, 0, 0, 0] == 53


def nested_vector(streams: Any) -> Any:
    return gymnasium.vector.SyncVectorEnv([functools.partial(Nested, int(s)) for s in streams])


def test_floats_do_not_become_bytes():
    with pytest.raises(WrongValue, match=r"stream 0: obs: expected uint8 \[2\], got float64 \[2\]"):
        env_of(f"{__name__}:Bytes", 1).recv()
