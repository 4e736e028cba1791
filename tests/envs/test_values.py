"""Values of any type, in every place, by every interface: taken, or refused in one sentence;
``check`` agrees with training.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from equipoise import tree
from equipoise.envs import final, make, scales
from equipoise.envs.adapter import GymnasiumEnv
from equipoise.envs.check.check import check_env
from equipoise.envs.check.findings import Findings, judge_reward
from equipoise.envs.check.info_probe import unseen
from equipoise.envs.failures.row_checks import Checks, WrongValue
from equipoise.envs.hints import UnsupportedSpace
from equipoise.envs.infos import Infos, NoNumber, paths
from equipoise.envs.space_json import from_json, to_json
from equipoise.envs.spaces import action_spec, observation_spec, part_spec, timestep
from equipoise.envs.values import number, numbers, taken
from equipoise.files import plain
from equipoise.types import EnvFactory
from tests.envs.given import LENGTH, NO_FLAGS, NO_MASKS, REFUSED, TAKEN, Many

HERE = "tests.envs.given"
INTERFACES: dict[str, tuple[str, dict[str, Any]]] = {
    "one": (f"{HERE}:One", {}),
    "next": (f"{HERE}:Many", {}),
    "same": (f"{HERE}:Many", {"mode": "SameStep"}),
    "duo": (f"{HERE}:Duo", {}),
}
PLACES = ("obs", "first obs", "reward", "terminated", "truncated", "mask", "info mask", "final_obs")
KEYS = {
    "first obs": "obs",
    "mask": "/action_mask",
    "info mask": "info/action_mask",
    "final_obs": "info/final_obs",
}


def factory(interface: str, place: str, kind: str) -> EnvFactory:
    target, kwargs = INTERFACES[interface]
    mask = "info" if place == "info mask" else "auto"
    return EnvFactory(
        target=target, kwargs={"place": place, "kind": kind, **kwargs}, action_mask=mask
    )


def trained(made: EnvFactory, *metrics: str) -> str:
    """Rows of two episodes, as a worker reads them -> what training refuses them for, or ""."""
    env: Any = make(made, streams=np.arange(2), seed=0, metrics=metrics)
    try:
        env.recv()
        for _ in range(2 * LENGTH + 3):
            env.send(env.form.zeros(), env.ts.stream)
            ts = env.recv()
            assert np.isfinite(ts.reward).all()
            if metrics and ts.valid.all() and not ts.first.any():
                assert (ts.info == 3).all()
    except (WrongValue, NoNumber) as refused:
        return str(refused)
    finally:
        env.close()
    return ""


def checked(made: EnvFactory) -> str:
    """What ``check`` calls an error, or ""."""
    report = check_env(made, steps=2 * LENGTH + 3, seconds=30)
    errors = [
        f"{found.what}: {found.seen}" for found in report.findings if found.severity == "error"
    ]
    # rules that training does not need
    return "; ".join(error for error in errors if "parallel_api_test" not in error)


def kinds(place: str) -> dict[str, bool]:
    """{kind: is it taken}"""
    more = NO_FLAGS if place in ("terminated", "truncated") else NO_MASKS if "mask" in place else {}
    refused = dict.fromkeys((*REFUSED, *more), False)
    if place == "info mask":  # an axis in front is taken: [1, n]
        refused.pop("one too many axes")
    # no last observation: a truncation counts as a termination, with a note
    if place == "final_obs":
        refused["None"] = True
    return dict.fromkeys(TAKEN, True) | refused


CASES = [
    (interface, place)
    for interface in INTERFACES
    for place in PLACES
    if place != "final_obs" or interface == "same"
]


@pytest.mark.few(1)
@pytest.mark.filterwarnings(
    "ignore:.*truncation treated as termination", "ignore:.*reported once", "ignore:.*was cast"
)
@pytest.mark.parametrize(
    ("interface", "place"), [one for one in CASES if one != ("duo", "info mask")]
)
def test_a_value_of_any_type_is_taken_or_named_and_check_agrees(interface: str, place: str) -> None:
    odd = []
    for kind, fits in kinds(place).items():
        made = factory(interface, place, kind)
        said, found = trained(made), checked(made)
        named = (
            KEYS.get(place, place) in said.replace("obs/action", "info/action")
            and "expected" in said
            and "got" in said
            and (any(agent in said for agent in ("red", "blue")) or interface != "duo")
        )
        if ((said == ""), (found == ""), named) != (fits, fits, not fits):
            odd.append(f"{kind}: {fits=}, training: {said!r}, check: {found!r}")
    assert not odd, "\n".join(odd)


# ------------------------------------------------------------ last observations

BOX = spaces.Box(0, 9, (2,), np.float32)
SPACES: dict[str, Any] = {
    "box": BOX,
    "dict": spaces.Dict({"a": BOX, "b": spaces.Discrete(9)}),
    "tuple": spaces.Tuple((BOX, spaces.Discrete(9))),
}
ONE: dict[str, Any] = {
    "box": np.ones(2, np.float32),
    "dict": {"a": np.ones(2), "b": 7},
    "tuple": (np.ones(2), 7),
}
ALL = np.ones((3, 2))
WHOLE: dict[str, Any] = {
    "box": ALL,
    "dict": {"a": ALL, "b": np.full(3, 7)},
    "tuple": (ALL, np.full(3, 7)),
}
ROWS = np.array([True, False, True])


def by_env(one: Any, empty: bool = True) -> list[Any]:
    return [one, None if empty else one, one]


def in_objects(values: list[Any]) -> Any:
    array = np.full(len(values), None, object)
    for i, value in enumerate(values):
        array[i] = value
    return array


FORMS: dict[str, Any] = {
    "arrays": lambda kind: WHOLE[kind],
    "list": lambda kind: by_env(ONE[kind]),
    "whole list": lambda kind: by_env(ONE[kind], False),
    "objects": lambda kind: in_objects(by_env(ONE[kind])),
    "tensors": lambda kind: tree_of(
        WHOLE[kind], lambda x: torch.tensor(x, dtype=torch.float64 if x.ndim > 1 else torch.int64)
    ),
    "lists": lambda kind: tree_of(WHOLE[kind], lambda x: x.tolist()),
    "tensors by env": lambda kind: by_env(tree_of(ONE[kind], torch.as_tensor)),
}


def tree_of(value: Any, change: Any) -> Any:
    if isinstance(value, dict):
        return {key: tree_of(one, change) for key, one in value.items()}
    return (
        tuple(tree_of(one, change) for one in value) if isinstance(value, tuple) else change(value)
    )


@pytest.mark.few(6)
@pytest.mark.parametrize("name", ["final_obs", "final_observation"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", SPACES)
def test_last_observations_in_every_form(kind: str, form: str, name: str) -> None:
    rows = tree.zeros(tree.prepend(observation_spec(SPACES[kind]), 3))
    info = {name: FORMS[form](kind), f"_{name}": ROWS.astype(int).tolist()}
    assert final.read(rows, info, ROWS).tolist() == ROWS.tolist()
    first, *more = tree.leaves(rows)
    assert (first == ROWS[:, None]).all() and all((one == 7 * ROWS).all() for one in more)


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("box", ALL[:2]),
        ("box", [ONE["box"]] * 2),
        ("box", [ONE["box"], None, "left"]),
        ("box", 3.0),
        ("box", "left"),
        ("box", ONE["dict"]),
        ("box", np.ones((3, 4))),
        ("dict", {"a": ALL}),
        ("dict", ALL),
        ("dict", by_env({"a": ALL[0]})),
        ("dict", by_env(7)),
        ("dict", {"a": ALL, "b": np.zeros(2)}),
        ("tuple", (ALL,)),
        ("tuple", by_env((ALL[0],))),
        ("box", object()),
        ("dict", {"a": by_env(None), "b": [1, 2, 3]}),
        ("tuple", {}),
    ],
)
def test_last_observations_that_are_none_are_named(kind: str, value: Any) -> None:
    rows = tree.zeros(tree.prepend(observation_spec(SPACES[kind]), 3))
    with pytest.raises(WrongValue, match=r"info/final_obs.*: expected .*, got "):
        final.read(rows, {"final_obs": value}, ROWS)
    with pytest.raises(WrongValue, match=r"info/_final_obs: expected True or False"):
        final.read(rows, {"final_obs": value, "_final_obs": [1, 2, 0]}, ROWS)


# ------------------------------------------------------------ metrics


@pytest.mark.few(3)
@pytest.mark.parametrize("interface", ["one", "next", "same"])
def test_metrics_of_any_type(interface: str) -> None:
    for kind in TAKEN:
        assert trained(factory(interface, "metric", kind), "score") == "", kind
    for kind in ("text", "Decimal", "raises", "dict", "object", "a text of numbers"):
        assert "metrics: expected" in trained(factory(interface, "metric", kind), "score"), kind


@pytest.mark.parametrize(
    "info", [None, [], [{}], "text", 3, object(), np.array(3), {"final_info": None}, {1: 2}]
)
def test_an_info_that_is_no_dict_has_no_metrics(info: Any) -> None:
    infos = Infos(("score",), 2)
    infos.seen = set()
    infos.read_one(0, info)
    infos.read_all(info)
    infos.read_all(info, np.array([True, False]))
    assert np.isnan(infos.value).all()


def test_metrics_of_a_list_of_dicts() -> None:
    infos = Infos(("score",), 2)
    infos.read_all([{"score": 1}, {}])
    np.testing.assert_array_equal(infos.value, [[1], [np.nan]])
    infos.read_all(in_objects([None, {"score": 2}]), np.array([False, True]))
    np.testing.assert_array_equal(infos.value, [[1], [2]])


@pytest.mark.parametrize("place", ["mask", "info mask"])
def test_metrics_are_looked_for_where_actions_are_masked(place: str) -> None:
    said = unseen(factory("one", place, "python"), ["foo"], seed=0)
    assert len(said) == 1 and "no 'foo' in the env's info" in said[0]


# ------------------------------------------------------------ what else may not be lost or hid


@pytest.mark.parametrize(
    "target",
    [
        "OldReset",
        "OldStep",
        "Dicts",
        "NoNames",
        "Later",
        "Numbers",
        "NoSpaces",
        "NoAgents",
        "Lists",
    ],
)
def test_a_parallel_env_of_another_interface_is_told_what_to_give(target: str) -> None:
    made = EnvFactory(target=f"{HERE}:{target}", kwargs={"place": "", "kind": "array"})
    with pytest.raises(
        (ValueError, WrongValue), match="a parallel env, as PettingZoo's, has possible_agents"
    ) as refused:
        trained_loudly(made)
    assert "shimmy" not in str(refused.value)
    assert "a parallel env, as PettingZoo's" in checked(made)


def trained_loudly(made: EnvFactory) -> None:
    env = make(made, streams=np.arange(2), seed=0)
    env.recv()
    env.send(env.form.zeros(), env.ts.stream)
    env.recv()


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (0,)),
        spaces.Box(0, 255, (0, 4), np.uint8),
        spaces.Box(-1, 1, (2, 0), np.float64),
        spaces.Dict({"a": spaces.Box(0, 3, (0,), np.int64), "b": BOX}),
    ],
)
def test_arrays_without_elements(space: Any) -> None:
    ts, floats = timestep(part_spec(space), np.arange(2))
    checks = Checks(space, ts, floats)
    checks.fill([0])
    assert checks.fine(begins=True) and not checks.wrong() and checks.clamp(0) == 0
    assert from_json(to_json(space)) == space
    assert scales.large(space) == {} == scales.large_seen(space, ts.obs)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("space", "large"),
    [
        (spaces.Box(0, 255, (128,), np.uint8), {"obs": 255.0}),
        (spaces.Box(0, 255, (3, 24, 24), np.uint8), {}),
        (
            spaces.Dict(
                {
                    "a": BOX,
                    "b": spaces.Box(np.array([-1, -1e6]), np.array([1, 1e6]), dtype=np.float64),
                }
            ),
            {"obs/b": 1e6},
        ),
        (spaces.Box(-np.inf, np.inf, (2,)), {}),
        (spaces.Box(0, 255, (4, 4, 3), np.float32), {"obs": 255.0}),
        (spaces.Box(np.finfo(np.float32).min, np.finfo(np.float32).max, (2,)), {}),
        (spaces.Discrete(1000), {}),
    ],
)
def test_numbers_that_no_network_can_use_are_found(space: Any, large: dict[str, float]) -> None:
    assert scales.large(space) == large and bool(scales.said(large)) == bool(large)


def test_large_numbers_without_bounds_are_found_where_they_are_seen() -> None:
    space = spaces.Dict({"a": BOX, "b": spaces.Box(-np.inf, np.inf, (2,))})
    assert scales.large_seen(space, {"a": np.zeros((1, 2)), "b": np.array([[1.0, -5e6]])}) == {
        "obs/b": 5e6
    }


def test_a_small_integer_is_not_wrapped() -> None:
    spec = observation_spec(spaces.Box(0, 100, (1,), np.int8))
    with pytest.raises(
        WrongValue, match=r"obs: expected int8 \[1\], from -128 to 127, got int64 300"
    ):
        taken(spec, np.array([300]), 0)
    assert taken(spec, [100], 0).tolist() == [100]


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**70, 10**300])
def test_a_whole_number_beyond_int64_is_a_number(value: int) -> None:
    assert number(value, 0, "reward") == float(value)
    assert numbers([1, value], 2, "reward").tolist() == [1.0, float(value)]
    found = Findings()
    judge_reward(found, value, (), "step 1")
    assert len(found.all()) == (value > 10**39)


@pytest.mark.parametrize("value", [1e39, -1e39, np.longdouble("1e4000"), np.float64(1e300)])
def test_a_reward_beyond_float32_is_found_by_check_as_by_training(value: Any) -> None:
    found = Findings()
    judge_reward(found, value, (), "step 1")
    assert [one.what for one in found.all()] == ["reward is not finite"]


def test_a_whole_number_beyond_all_floats_is_named() -> None:
    for read in (lambda: number(10**400, 0, "reward"), lambda: numbers([1, 10**400], 2, "reward")):
        with pytest.raises(
            WrongValue, match="reward: expected a finite number, got one beyond all floats"
        ):
            read()


@pytest.mark.parametrize("bounds", [(np.nan, np.nan), (-1, np.nan), (np.nan, 1)])
def test_bounds_of_nan_are_named(bounds: tuple[float, float]) -> None:
    """A space with them is not equal to itself, so two envs of a worker could not have the same."""
    box = spaces.Box(-1, 1, (2,))
    box.low[:], box.high[:] = bounds
    for spec in (observation_spec, action_spec):
        with pytest.raises(
            UnsupportedSpace,
            match="x/a is not supported: expected bounds that are numbers, got nan",
        ):
            spec(spaces.Dict({"a": box}), "x")


def test_a_vector_env_without_its_single_space_is_told_of_it() -> None:
    env = Many("nowhere", "array")
    del env.single_observation_space
    with pytest.raises(UnsupportedSpace, match="observation space None is not supported"):
        GymnasiumEnv(env, streams=np.arange(env.num_envs), seed=0)


def test_an_info_that_holds_itself_has_names() -> None:
    info: dict[str, Any] = {"a": 1, "deeper": {"b": 2}}
    info["self"] = info["deeper"]["up"] = info
    assert list(paths(info)) == ["a", "deeper/b"]


def test_a_space_of_longdouble_is_written() -> None:
    assert plain(np.longdouble(0.5)) == 0.5 and plain(np.full(2, 0.5, np.longdouble)) == [0.5, 0.5]
    assert plain(np.longdouble("inf")) is None
