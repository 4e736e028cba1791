"""Observations from outside: lines for ``edge.py``, and npz files of recorded rows.

Each is drawn near what is right, with up to three things wrong. What has nothing wrong must be
taken as it is; all else is taken or refused in one sentence, and no number that is not finite, no
unknown key and no other shape is ever taken.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import strategies as st

from equipoise import edge, tree
from equipoise.api.recorded import recordings
from equipoise.envs.spaces import observation_spec
from equipoise.exporting import artifact as artifacts
from equipoise.exporting.graph import PolicyGraph
from equipoise.types import EnvSpec
from tests.artifacts import KINDS, untrained
from tests.outside.harness import Door, Fault, Planted, shares

GOOD = '{"obs": [0.5, -0.5, 0.25, 0], "action_mask": [1, 0, 1]}'
NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from(
        [math.nan, math.inf, -math.inf, 1e39, 1e308, 10**30, -(2**63), True, None, "1", "\ud83e"]
    ),
)
VALUES = st.recursive(NUMBERS, lambda inner: st.lists(inner, max_size=5), max_leaves=8)
KEYS = st.sampled_from(
    ["obs", "action_mask", "session", "first", "", "a/b", "observation", "x" * 300]
)


def _lines() -> st.SearchStrategy[list[str]]:
    right, mask = st.just([0.5] * 4), st.just([1, 0, 1])
    four = (
        st.tuples(NUMBERS, st.just(0.5), st.just(0.5), st.just(0.5))
        .map(list)
        .flatmap(st.permutations)
    )
    near = shares(  # one of the two is right
        st.fixed_dictionaries(
            {"obs": shares(four, four, st.lists(NUMBERS, max_size=5)), "action_mask": mask}
        ),
        st.fixed_dictionaries({"obs": right, "action_mask": st.lists(NUMBERS, max_size=4)}),
    )
    any_keys = st.dictionaries(KEYS, VALUES, max_size=4)
    wrapped = st.fixed_dictionaries({"obs": near, "session": NUMBERS, "first": NUMBERS})
    deep = st.integers(1, 200_000).flatmap(
        lambda n: st.sampled_from(["[" * n, "[" * n + "]" * n, '{"obs":' * n])
    )
    text = st.one_of(
        st.text(max_size=20), st.sampled_from(["[1,", "nan", "\ufeff[0,0,0,0]", "9" * 5000])
    )
    said = (near, near, wrapped, any_keys)
    line = shares(st.just(GOOD), *(one.map(json.dumps) for one in said), deep, text)
    return st.lists(
        line.map(lambda one: "".join(c for c in one if c not in "\n\r")), min_size=1, max_size=4
    )


@functools.cache
def _policy() -> tuple[tempfile.TemporaryDirectory[str], Path]:
    """An artifact whose graph is written by hand: what is tried is how lines are read, and torch's
    exporter takes 10 s.
    """
    held = tempfile.TemporaryDirectory(prefix="equipoise-door-")
    one, policy = untrained(*KINDS["mask"])
    module = PolicyGraph(policy, one.spec)
    spec = artifacts.spec_json("main", one, policy, module, step=0)
    files = {
        artifacts.GRAPH: _graph(module),
        artifacts.WEIGHTS: b"",
        artifacts.EDGE: Path(edge.__file__).read_bytes(),
    }
    artifacts._publish(
        place := Path(held.name) / "policy", files | {artifacts.SPEC: artifacts._json(spec)}
    )
    return held, place


def _graph(module: PolicyGraph) -> bytes:
    """The best of three actions that the mask allows, by weights of the observation; a log
    propensity of 0.
    """
    from onnx import TensorProto, helper

    def value(name: str, dtype: str, shape: tuple[int, ...]) -> Any:
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), ["rows", *shape]
        )

    weights = [((7 * i) % 5 - 2) / 2 for i in range(12)]
    nodes = [
        helper.make_node("MatMul", ["obs/obs", "weights"], ["scores"]),
        helper.make_node("Cast", ["obs/action_mask"], ["allowed"], to=TensorProto.BOOL),
        helper.make_node("Where", ["allowed", "scores", "never"], ["masked"]),
        helper.make_node("ArgMax", ["masked"], ["action"], axis=1, keepdims=0),
        helper.make_node("Cast", ["action"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["number", "number"], ["logp"]),
    ]
    held = [
        helper.make_tensor("weights", TensorProto.FLOAT, [4, 3], weights),
        helper.make_tensor("never", TensorProto.FLOAT, [], [-1e30]),
    ]
    inputs = [
        value(name, spec.dtype, tuple(spec.shape)) for name, spec in module.signature.inputs.items()
    ]
    outputs = [value("action", "int64", ()), value("logp", "float32", ())]
    graph = helper.make_graph(nodes, "policy", inputs, outputs, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return bytes(model.SerializeToString())


def _finite(value: Any) -> bool:
    if isinstance(value, dict | list):
        return all(map(_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def say(lines: list[str]) -> None:
    """Each line is answered or named, in order, and the good one at the end is answered whatever
    came before.
    """
    sent = "\n".join([*lines, GOOD]).encode("utf-8", "surrogatepass")
    out, err, before = io.StringIO(), io.StringIO(), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(sent))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = edge.main([str(_policy()[1])])
    finally:
        sys.stdin = before
    named = {
        int(line.split(":")[1].removeprefix(" line "))
        for line in err.getvalue().split("\n")
        if line.startswith("edge.py: line")
    }
    actions = out.getvalue().split()
    asked = {number for number, line in enumerate(sent.split(b"\n"), 1) if line.strip()}
    if not named <= asked or len(actions) != len(asked) - len(named) or len(lines) + 1 in named:
        raise Fault("a line is neither answered nor named", f"{code}: {err.getvalue()[:500]}")
    if code != bool(named):
        raise Fault("exit code", f"{code} with {len(named)} wrong lines")
    for number, action in zip(sorted(asked - named), actions, strict=True):
        said = json.loads(sent.split(b"\n")[number - 1])
        if not _finite(said) or "action_mask" not in json.dumps(said):
            raise Fault("what is no observation was taken", str(said)[:500])
        if not (said if "action_mask" in said else said["obs"])["action_mask"][int(action)]:
            raise Fault("an action that the mask forbids", f"{action} of {str(said)[:500]}")
    for number, line in enumerate(lines, 1):
        if line == GOOD and number in named:
            raise Fault("an observation was refused", err.getvalue()[:500])


# ------------------------------------------------------------------------------------ recorded rows


ROWS = 3
SPACE = spaces.Dict(
    {
        "a/b": spaces.Box(-9.0, 9.0, (2,), np.float32),
        "": spaces.Box(0, 9, (1,), np.int16),
        "x.npy": spaces.Discrete(3),
        "a": spaces.Dict(
            {
                "b": spaces.Box(-9.0, 9.0, (), np.float64),
                "none": spaces.Box(0.0, 1.0, (2, 0), np.float32),
            }
        ),
    }
)
SPEC = EnvSpec(observation=SPACE, action=spaces.Discrete(2))
RIGHT = {
    name: [s.dtype, [ROWS, *s.shape], 1]
    for name, s in tree.named("obs", observation_spec(SPACE)).items()
}
NAMES = [
    *RIGHT,
    "obs",
    "obs/a",
    "obs/a/b/c",
    "obs/~",
    "obs/~5",
    "first",
    "action",
    "action/x",
    "other",
    "",
    "/",
    "obs/",
]
FILLS = st.sampled_from([0, 1, 2, -1, 255, 40_000, 1e39, math.nan, math.inf])
DTYPES = st.sampled_from(
    ["float32", "float64", "float16", "int64", "uint8", "bool", "U3", "O", "M8[s]", "complex64"]
)
SHAPES = st.lists(st.integers(0, 4), max_size=4)


@st.composite
def _files(draw: st.DrawFn) -> dict[str, Any]:
    arrays: dict[str, Any] = {name: list(one) for name, one in RIGHT.items()}
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(NAMES))
        kind, shape, fill = arrays.get(name, ["float32", [ROWS], 1])
        how = draw(st.sampled_from(["fill", "fill", "dtype", "shape", "drop"]))
        if how == "drop":
            arrays.pop(name, None)
            continue
        kind, shape = (
            draw(DTYPES) if how == "dtype" else kind,
            draw(SHAPES) if how == "shape" else shape,
        )
        arrays[name] = [kind, shape, draw(FILLS) if how == "fill" else fill]
    damage = draw(st.one_of(st.none(), st.none(), st.tuples(st.floats(0, 1), st.integers(0, 255))))
    return {"arrays": arrays, "damage": damage}


def read(example: dict[str, Any]) -> None:
    """The rows are those of the file, or the error names it."""
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        path = Path(folder) / "rows.npz"
        arrays: dict[str, Any] = {}
        for name, (kind, shape, fill) in example["arrays"].items():
            try:
                arrays[name] = np.full(shape, fill).astype(kind)
            except (ValueError, OverflowError, TypeError):
                return
        np.savez(path, **arrays)
        if example["damage"]:
            at, value = example["damage"]
            data = bytearray(path.read_bytes())
            data[int(at * (len(data) - 1))] = value
            path.write_bytes(data)
        try:
            found = list(recordings(path, SPEC))
        except ValueError as error:
            if example["arrays"] == RIGHT and not example["damage"]:
                raise Fault("good rows were refused", str(error)) from error
            if not str(error).startswith(str(path)) or len(str(error)) > 2000:
                raise Fault("an error without its file", str(error)[:500]) from error
            return
    for one in found:
        for name, leaf in tree.named("obs", one.obs).items():
            kind, _, fill = example["arrays"].get(name, [None, None, None])
            if list(leaf.shape[1:]) != RIGHT[name][1][1:] or not np.isfinite(leaf).all():
                raise Fault("rows that are none were taken", f"{name}: {leaf}")
            with np.errstate(all="ignore"):
                wanted = np.full(1, fill).astype(kind).astype(leaf.dtype)
            if not example["damage"] and leaf.size and leaf.flat[0] != wanted[0]:
                raise Fault("another value than the file's", f"{name}: {leaf.flat[0]}")


DOORS = [
    Door(name="edge lines", examples=_lines(), attempt=say, quick=20, full=300, prepare=_policy),
    Door(name="recorded rows", examples=_files(), attempt=read, quick=60, full=600),
]


# ----------------------------------------------------------------------------------- planted faults


def nest_splits_keys(patch: pytest.MonkeyPatch) -> None:
    def nest(flat: dict[str, Any]) -> Any:
        made: dict[str, Any] = {}
        for path, leaf in flat.items():
            *parents, last = path.split("/")
            node = made
            for part in parents:
                node = node.setdefault(part, {})
            node[last] = leaf
        return made

    patch.setattr(tree, "nest", nest)


def nan_is_taken(patch: pytest.MonkeyPatch) -> None:
    before = edge.Reader.read

    def read(self: Any, obs: Any) -> Any:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(np, "isfinite", lambda x: np.ones(np.shape(x), bool))
            return before(self, obs)

    patch.setattr(edge.Reader, "read", read)


def brackets_end_the_stream(patch: pytest.MonkeyPatch) -> None:
    def answer(policy: Any, line: Any, *, deterministic: bool) -> Any:
        obs, how = policy.artifact.asked(json.loads(line))
        return policy.act(obs, deterministic=deterministic, **how)

    patch.setattr(edge, "_answer", answer)


PLANTED = [
    Planted(
        "a key with a slash is split",
        "recorded rows",
        nest_splits_keys,
        kinds=("refused", "AttributeError", "TypeError", "value"),
    ),
    Planted("nan is taken as an observation", "recorded rows", nan_is_taken, kinds=("taken",)),
    Planted("nan is taken as a line", "edge lines", nan_is_taken, kinds=("taken",)),
    Planted(
        "brackets end the stream", "edge lines", brackets_end_the_stream, kinds=("RecursionError",)
    ),
]
