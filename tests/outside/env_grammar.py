"""Descriptions of envs that JSON can hold: which there are (``examples``), and the spaces that they
name (``made``).

A description has the spaces, the kind of env and how its episodes end; ``odd`` says in which few
ways it is not like most. Each way is a member of ``ODD``: some are allowed by the documentation of
Gymnasium or PettingZoo, some are not.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

KEYS = [
    "a",
    "b",
    "a/b",
    "",
    ".",
    "a.b",
    "/",
    "ä",
    "0",
    "obs",
    "action_mask",
    "a b",
    "..",
    "日本",
    "x\ny",
    "weight",
    "1",
]
DTYPES = [
    "float32",
    "float64",
    "float16",
    "uint8",
    "int64",
    "int8",
    "int16",
    "int32",
    "uint16",
    "uint32",
    "uint64",
    "bool",
]
SHAPES: list[list[int]] = [[2], [], [1], [0], [3, 2], [0, 4], [2, 2, 2], [1, 4, 4]]
BOUNDS: list[list[Any]] = [
    [-1, 1],
    [0, 1],
    ["-inf", "inf"],
    [0, "inf"],
    ["-inf", 3],
    [-1000000, 1000000],
    [0, 255],
    ["min", "max"],
    [2, 2],
]


def number(value: Any, dtype: np.dtype[Any]) -> Any:
    if value in ("min", "max"):
        limits: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        return getattr(limits, value)
    return float(value) if isinstance(value, str) else value


def made(said: dict[str, Any]) -> spaces.Space[Any]:
    """The space of a description."""
    kind = said["kind"]
    if kind == "box":
        dtype = np.dtype(said["dtype"])
        if dtype.kind == "b":
            return spaces.Box(0, 1, tuple(said["shape"]), np.bool_)
        low, high = (number(bound, dtype) for bound in said["bounds"])
        if dtype.kind != "f":  # what a dtype cannot hold, and infinities, are its own limits
            limits = np.iinfo(dtype)
            low, high = (
                int(min(max(x, limits.min), limits.max)) if math.isfinite(x) else None
                for x in (low, high)
            )
            low, high = limits.min if low is None else low, limits.max if high is None else high
        else:
            most = float(np.finfo(dtype).max)
            low, high = (x if math.isinf(x) else min(max(x, -most), most) for x in (low, high))
        shape = tuple(said["shape"])
        return spaces.Box(
            np.full(shape, low, dtype), np.full(shape, high, dtype), shape, dtype.type
        )
    if kind == "discrete":
        return spaces.Discrete(said["n"], start=said["start"], dtype=np.dtype(said["dtype"]).type)
    if kind == "multidiscrete":
        start = np.full(np.shape(said["nvec"]), said["start"]) if said["start"] else None
        return spaces.MultiDiscrete(
            np.array(said["nvec"]), dtype=np.dtype(said["dtype"]).type, start=start
        )
    if kind == "multibinary":
        return spaces.MultiBinary(said["n"])
    if kind == "tuple":
        return spaces.Tuple([made(one) for one in said["parts"]])
    if kind == "dict":
        return spaces.Dict(OrderedDict((key, made(one)) for key, one in said["parts"]))
    if kind == "text":
        return spaces.Text(5)
    if kind == "sequence":
        return spaces.Sequence(made(said["of"]))
    if kind == "graph":
        return spaces.Graph(spaces.Box(0, 1, (2,)), None)
    return spaces.OneOf([made(one) for one in said["parts"]])


BOX = {"kind": "box", "dtype": "float32", "shape": [2], "bounds": [-1, 1]}
TWO = {"kind": "discrete", "n": 2, "start": 0, "dtype": "int64"}


def records(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            key: value if isinstance(value, st.SearchStrategy) else st.just(value)
            for key, value in fields.items()
        }
    )


discretes = records(
    kind="discrete",
    n=st.integers(1, 4),
    start=st.sampled_from([0, 1, 5, -3]),
    dtype=st.sampled_from(["int64", "int32", "int8", "uint8"]),
).map(lambda d: d if d["dtype"] != "uint8" or d["start"] >= 0 else {**d, "start": 0})
multidiscretes = records(
    kind="multidiscrete",
    nvec=st.sampled_from([[2], [2, 3], [[2, 2], [3, 1]]]),
    start=st.sampled_from([0, 2, -1]),
    dtype=st.sampled_from(["int64", "int32"]),
)
multibinaries = records(kind="multibinary", n=st.sampled_from([1, 3, [2, 2]]))
boxes = records(
    kind="box",
    dtype=st.sampled_from(DTYPES),
    shape=st.sampled_from(SHAPES),
    bounds=st.sampled_from(BOUNDS),
)
plain_boxes = st.one_of(st.just(BOX), boxes)
refused = st.one_of(
    st.just({"kind": "text"}),
    st.just({"kind": "graph"}),
    records(kind="sequence", of=st.just(BOX)),
    records(kind="oneof", parts=st.just([BOX, TWO])),
)


def nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def more(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        keyed = st.lists(
            st.tuples(st.sampled_from(KEYS), inner).map(list),
            min_size=0,
            max_size=3,
            unique_by=lambda pair: pair[0],
        )
        return st.one_of(
            records(kind="dict", parts=keyed),
            records(kind="tuple", parts=st.lists(inner, min_size=0, max_size=2)),
        )

    return st.recursive(leaves, more, max_leaves=4)


observations = st.one_of(
    st.just(BOX),
    plain_boxes,
    nested(st.one_of(st.just(BOX), boxes, discretes, multidiscretes, multibinaries)),
    nested(st.one_of(st.just(BOX), boxes, refused)),
)
actions = st.one_of(
    st.just(TWO),
    discretes,
    discretes,
    multidiscretes,
    multibinaries,
    boxes.filter(lambda b: b["dtype"].startswith("float")),
    nested(st.one_of(discretes, st.just(BOX), multibinaries)),
    st.one_of(refused, boxes),
)

# The ways in which an env is odd, by what is odd of it. What must be told: check and train have to
# say something.
VALUES = [
    "python",
    "zero_d",
    "torch",
    "foreign",
    "float64",
    "int64",
    "fortran",
    "readonly",
    "reused",
    "big_endian",
    "tuples",
    "extra_key",
    "one",
    "grad",
    "none",
    "text",
    "number_text",
    "nan",
    "inf",
    "outside",
    "short",
    "longer",
    "missing_key",
    "object",
    "complex",
    "ragged",
    "masked_array",
    "mapping",
]
NUMBERS = [
    "int",
    "bool",
    "float16",
    "float64",
    "int8",
    "uint8",
    "zero_d",
    "one",
    "list",
    "torch",
    "torch_one",
    "grad",
    "none",
    "text",
    "number_text",
    "nan",
    "inf",
    "huge",
    "complex",
    "foreign",
    "object",
    "decimal",
    "fraction",
    "bytes",
]
FLAGS = [
    "numpy",
    "int",
    "float",
    "zero_d",
    "one",
    "torch",
    "none",
    "text",
    "number_text",
    "two",
    "nan",
    "foreign",
    "object",
    "list",
    "grad",
]
MASKS = [
    "int8",
    "bool",
    "float64",
    "int64",
    "uint8",
    "list",
    "tuple",
    "torch",
    "foreign",
    "python_bools",
    "row",
    "nan",
    "inf",
    "negative",
    "half",
    "two",
    "nothing",
    "short",
    "longer",
    "none",
    "text",
    "absent",
    "object",
    "all",
    "sometimes",
]
INFOS = [
    "none",
    "list",
    "changing",
    "arrays",
    "text",
    "nested",
    "number_keys",
    "numbers",
    "tensor",
    "time_limit",
    "mapping",
]
FINALS = [
    "gymnasium",
    "array",
    "tuple",
    "old_name",
    "dict_of_arrays",
    "list",
    "list_of_arrays",
    "masked",
    "none",
    "torch",
    "short",
    "half",
    "text",
    "done_rows",
    "mask_list",
    "nan",
]
AUTORESET = [
    "NEXT_STEP",
    "SAME_STEP",
    "NextStep",
    "SameStep",
    "DISABLED",
    "Disabled",
    "none",
    "missing",
    "bogus",
    "next_step",
]
SHAPE = [
    "no_options",
    "no_seed",
    "positional",
    "reset_obs_only",
    "reset_none",
    "step_four",
    "step_dict",
    "step_list",
    "no_metadata",
    "none_metadata",
    "property_spaces",
    "extra",
    "duck",
    "no_action_space",
    "none_space",
    "render_none",
    "spec_none",
    "no_super_reset",
    "raises_step",
    "raises_reset",
    "raises_first_reset",
    "raises_init",
    "raises_close",
    "str_raises",
    "prints",
    "bool_subclass_env",
    "warns",
]
WRAPPERS = [
    "TimeAwareObservation",
    "FrameStackObservation",
    "DelayObservation",
    "FlattenObservation",
    "RescaleAction",
    "ClipAction",
    "RecordEpisodeStatistics",
    "PassiveEnvChecker",
    "OrderEnforcing",
    "NormalizeObservation",
    "NormalizeReward",
    "TimeLimit",
    "StickyAction",
    "RepeatAction",
    "Autoreset",
    "DtypeObservation",
    "RescaleObservation",
    "DiscretizeObservation",
    "DiscretizeAction",
    "ReshapeObservation",
    "MaxAndSkipObservation",
    "ClipReward",
    "SyncVectorEnv",
]
AGENTS = [
    "dies_early",
    "dicts_of_spaces",
    "no_possible_agents",
    "reset_obs_only",
    "step_four",
    "int_names",
    "odd_names",
    "agents_kept",
    "missing_obs",
    "missing_reward",
    "missing_flag",
    "extra_agent",
    "unknown_agent",
    "none_obs",
    "duplicate",
    "no_agents",
    "one_agent",
    "order_changes",
    "OrderEnforcing",
    "BaseParallel",
    "different_spaces",
    "tuple_agents",
    "all_flag",
    "no_metadata",
    "infos_none",
    "never_begins",
]
ODD: dict[str, list[str]] = {
    "values": VALUES,
    "reward": NUMBERS,
    "terminated": FLAGS,
    "truncated": FLAGS,
    "info": INFOS,
    "shape": SHAPE,
    "mask_info": MASKS,
    "mask_obs": MASKS,
}


def ways(names: list[str], **more: list[str]) -> st.SearchStrategy[dict[str, str]]:
    """At most two ways to be odd, each of another thing."""
    table = {name: ODD[name] for name in names} | more
    pair = st.sampled_from([(name, way) for name, its in sorted(table.items()) for way in its])
    some = st.sampled_from([0, 1, 1, 1, 2, 2]).flatmap(
        lambda n: st.lists(pair, min_size=n, max_size=n)
    )
    return some.map(dict)


THEN: list[list[str]] = [[]] * 10 + [
    ["resume"],
    ["collect"],
    ["resume", "collect"],
    ["act"],
    ["evaluate"],
    ["act"],
    ["resume"],
    ["collect"],
]
THEN += [["evaluate"], ["export"]]


def common(kind: str, odd: st.SearchStrategy[dict[str, str]]) -> st.SearchStrategy[dict[str, Any]]:
    return records(
        kind=kind,
        observation=observations,
        action=actions,
        longest=st.sampled_from([3, 1, 6]),
        ending=st.sampled_from(["mixed", "terminated", "truncated", "both"]),
        since=st.sampled_from([0, 1, 4]),
        odd=odd,
        algorithm=st.sampled_from(["ppo", "dqn"]),
        metrics=st.sampled_from([False, False, False, True]),
        then=st.sampled_from(THEN),
    )


PLAIN = ["values", "reward", "terminated", "truncated", "info"]


def fit(said: dict[str, Any]) -> dict[str, Any]:
    """Most wrappers want an observation or an action of one kind; three in four envs have it."""
    wrapper = said["odd"].get("wrapper", "")
    if not wrapper or said["since"] == 4:
        return said
    box = {"kind": "box", "dtype": "float32", "shape": [2], "bounds": [-1, 1]}
    action = box if "Action" in wrapper and wrapper != "StickyAction" else said["action"]
    return {
        **said,
        "observation": box if "Observation" in wrapper else said["observation"],
        "action": action,
    }


# What nobody can read, and what is easily lost: drawn more often, of envs that are like most.
SLASHED = {"kind": "dict", "parts": [["a/b", BOX], ["a", {"kind": "dict", "parts": [["b", BOX]]}]]}
EMPTY = {"kind": "dict", "parts": [["a", BOX], ["b", {**BOX, "shape": [0, 4]}]]}
SHARP: list[dict[str, Any]] = [
    *[{"observation": space} for space in (SLASHED, EMPTY) for _ in range(6)],
    *[
        {"odd": {name: way}}
        for name in ("mask_info", "mask_obs")
        for way in ("int8", "nan", "negative", "nothing")
    ],
    *[
        {"odd": {"mask_obs": way}, "metrics": True}
        for way in ("int8", "negative")
        for _ in range(4)
    ],
    *[{"odd": {"reward": way}} for way in ("number_text", "none") for _ in range(5)],
    *[
        {"odd": {name: way}}
        for name in ("terminated", "truncated")
        for way in ("none", "number_text")
    ],
    *[
        {"kind": "vector", "ending": "truncated", "odd": {"autoreset": "SAME_STEP", "final": way}}
        for way in ("list", "text")
        for _ in range(8)
    ],
]


def sharp() -> st.SearchStrategy[dict[str, Any]]:
    few = st.sampled_from([TWO, {"kind": "discrete", "n": 3, "start": 5, "dtype": "int64"}])
    usual = {"observation": BOX, "longest": 3, "since": 0, "then": []}
    way = st.sampled_from(SHARP)
    made = st.tuples(common("env", st.just({})), few, way)
    return made.map(lambda drawn: {**drawn[0], **usual, "action": drawn[1], **drawn[2]})


usual_kinds: st.SearchStrategy[dict[str, Any]] = st.one_of(
    common("env", ways([*PLAIN, "shape", "mask_info", "mask_obs"])),
    common("env", ways([*PLAIN, "mask_info", "mask_obs"], wrapper=WRAPPERS)).map(fit),
    common("vector", ways([*PLAIN, "mask_info", "mask_obs"], autoreset=AUTORESET, final=FINALS)),
    common("vector", ways([*PLAIN], final=FINALS)).map(
        lambda d: {**d, "odd": {**d["odd"], "autoreset": "SAME_STEP"}}
    ),
    common("parallel", ways([*PLAIN, "mask_obs"], agents=AGENTS)),
)
# One in three is sharp, however many ways the others have.
examples: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [usual_kinds, usual_kinds, sharp()]
).flatmap(lambda kind: kind)


# -------------------------------------------------------------------------------- values of a space


def mixed(*parts: Any) -> int:
    """A number from 0 to 2^32 that follows from ``parts``; neighbours have nothing in common."""
    x = 0x9E3779B97F4A7C15
    for part in parts:
        for byte in str(part).encode(errors="surrogatepass"):
            x = ((x ^ byte) * 0x100000001B3) % 2**64
        x = ((x ^ (x >> 29)) * 0xBF58476D1CE4E5B9) % 2**64
    return (x ^ (x >> 32)) % 2**32


def element(low: Any, high: Any, whole: bool, h: int) -> Any:
    """A number within bounds; those that are wide or infinite give small ones, or some near their
    finite end.
    """
    if whole:
        low, high = int(low), int(high)
        return (
            low + h % (high - low + 1)
            if high - low < 100_000
            else (min(max(h % 33 - 16, low), high) if h % 4 else low + h % 3)
        )
    if math.isfinite(low) and math.isfinite(high) and float(high) - float(low) < 100_000:
        return float(low) + (float(high) - float(low)) * (h % 257) / 256
    return min(max(float(h % 33 - 16), float(low)), float(high))


def member(space: spaces.Space[Any], *place: Any) -> Any:
    """A member of the space that follows from ``place``: numpy values, in the form of
    ``space.sample``.
    """
    if isinstance(space, spaces.Dict):
        return {key: member(one, *place, key) for key, one in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(member(one, *place, i) for i, one in enumerate(space.spaces))
    if isinstance(space, spaces.Discrete):
        return np.dtype(space.dtype).type(int(space.start) + mixed(*place) % int(space.n))
    shape = tuple(space.shape or ())
    count = math.prod(shape)
    hashes = [mixed(*place, i) for i in range(count)]
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = np.ravel(space.nvec), np.ravel(space.start)
        flat: Any = [int(start[i]) + h % int(nvec[i]) for i, h in enumerate(hashes)]
    elif isinstance(space, spaces.MultiBinary):
        flat = [h % 2 for h in hashes]
    elif isinstance(space, spaces.Box):
        low, high, whole = (
            np.ravel(space.low),
            np.ravel(space.high),
            np.dtype(space.dtype).kind != "f",
        )
        flat = [element(low[i], high[i], whole, h) for i, h in enumerate(hashes)]
    else:
        space.seed(mixed(*place) % 1000)
        return space.sample()
    return np.array(flat, space.dtype).reshape(shape)
