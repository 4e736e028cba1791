"""A space that is written as JSON and read again is the same space; what is no space is refused
where it stands.
"""

from __future__ import annotations

import json
import warnings
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from equipoise.envs.hints import UnsupportedSpace
from equipoise.envs.space_json import from_json, to_json

SPACES: list[spaces.Space[Any]] = [
    spaces.Box(0, 255, (3, 4), np.uint8),
    spaces.Box(-np.inf, np.inf, (2,), np.float64),
    spaces.Box(np.array([-0.1, -np.inf], np.float32), np.array([1 / 3, np.inf], np.float32)),
    spaces.Box(np.float32(-0.1), np.float32(0.1), (), np.float32),
    spaces.Box(np.arange(6).reshape(2, 3), np.arange(6).reshape(2, 3) + 2**62, dtype=np.int64),
    spaces.Box(0, 2**64 - 1, (2,), np.uint64),
    spaces.Box(-1, 1, (0,), np.float32),
    spaces.Discrete(5),
    spaces.Discrete(3, start=-1),
    spaces.Discrete(3, dtype=np.int32),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete(
        np.array([[2, 3], [4, 5]]), dtype=np.int64, start=np.array([[1, 2], [3, 4]])
    ),
    spaces.MultiDiscrete([127, 100], dtype=np.int8, start=[1, 28]),
    spaces.Discrete(127, start=1, dtype=np.int8),
    spaces.MultiBinary(4),
    spaces.MultiBinary([2, 3]),
    spaces.Dict(
        OrderedDict(
            {
                "z": spaces.Discrete(2),
                "a": spaces.Tuple([spaces.Box(-1, 1, (1,)), spaces.MultiBinary(2)]),
            }
        )
    ),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_is_read_as_it_was_written(space: spaces.Space[Any]) -> None:
    read = from_json(json.loads(json.dumps(to_json(space), allow_nan=False)))
    assert read == space and read.dtype == space.dtype and read.shape == space.shape
    if isinstance(space, spaces.Box) and isinstance(read, spaces.Box):
        assert (
            read.low.tobytes() == space.low.tobytes()
            and read.high.tobytes() == space.high.tobytes()
        )
    if isinstance(space, spaces.Dict) and isinstance(read, spaces.Dict):
        assert list(read.spaces) == list(space.spaces)  # networks take the parts in this order


def test_a_space_without_such_a_form_is_named_by_its_place() -> None:
    with pytest.raises(UnsupportedSpace, match=r"obs/words: expected a Box, .* got Text"):
        to_json(spaces.Dict({"words": spaces.Text(3)}), "obs")
    with pytest.raises(
        UnsupportedSpace, match=r"obs: expected a Box, .* of at most 16,777,216 numbers, got Box"
    ):
        to_json(spaces.Box(0, 1, (4097, 4096), np.uint8), "obs")


COUNTS = {"type": "MultiDiscrete", "start": 0, "dtype": "int8"}
BOX = {"type": "Box", "shape": [2], "dtype": "float32", "low": 0.0, "high": 1.0}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, r"obs: expected a JSON object whose 'type' is Box, .* got None"),
        ({"type": "Sequence"}, "obs: expected a JSON object whose 'type'"),
        ({"type": ["Box"]}, "obs: expected a JSON object whose 'type'"),
        ({"type": "Box", "shape": [2]}, "obs: expected a Box with the key 'dtype'"),
        (BOX | {"dtype": "object"}, "obs.dtype: expected one of float16"),
        (BOX | {"dtype": ["f"]}, "obs.dtype: expected one of float16"),
        (BOX | {"shape": [1 << 40]}, "obs.shape: expected a shape of at most"),
        (BOX | {"shape": 3}, "obs.shape: expected a list of sizes, got 3"),
        (BOX | {"shape": [-1]}, "obs.shape: expected a whole number of at least 0, got -1"),
        (BOX | {"low": "nought"}, "obs.low: expected .*numbers.*got 'nought'"),
        (BOX | {"low": [0.0, 1.0, 2.0]}, r"obs.low: .*the shape \[2\], got \[3\]"),
        (BOX | {"dtype": "uint8", "high": 300}, "obs.high: expected uint8 numbers"),
        (
            BOX | {"low": 2.0},
            "obs.low: expected bounds of float32 with a finite number between them",
        ),
        (BOX | {"low": 1e39, "high": "inf"}, "obs.low: expected bounds of float32"),
        (BOX | {"high": "-inf", "low": "-inf"}, "obs.low: expected bounds of float32"),
        (
            {"type": "Discrete", "n": 0, "start": 0, "dtype": "int64"},
            "obs.n: expected a whole number of at least 1, got 0",
        ),
        (
            {"type": "MultiDiscrete", "nvec": [2, "x"], "start": 0, "dtype": "int64"},
            "obs.nvec: expected whole numbers",
        ),
        (
            COUNTS | {"nvec": [260, 3]},
            "obs.nvec: expected values of int8, at most 127, got 260 values from 0",
        ),
        (COUNTS | {"nvec": [128]}, "obs.nvec: expected values of int8"),
        (
            COUNTS | {"nvec": [100], "start": [29]},
            "obs.nvec: expected values of int8, at most 127, got 100 values from 29",
        ),
        (COUNTS | {"type": "Discrete", "n": 300}, "obs.n: expected values of int8"),
        (COUNTS | {"type": "Discrete", "n": 100, "start": 29}, "obs.n: expected values of int8"),
        ({"type": "MultiBinary", "n": True}, "obs.n: expected a whole number"),
        ({"type": "Dict", "spaces": {"a": BOX}}, r"obs.spaces: expected a list of \[key, space\]"),
        (
            {"type": "Dict", "spaces": [["a", BOX | {"shape": 3}]]},
            "obs/a.shape: expected a list of sizes",
        ),
        ({"type": "Tuple", "spaces": []}, "obs.spaces: expected a list of spaces"),
    ],
)
def test_what_is_no_space_is_refused_where_it_stands(data: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        from_json(data, "obs")


def test_spaces_within_spaces_have_an_end() -> None:
    data: dict[str, Any] = BOX
    for _ in range(200):
        data = {"type": "Tuple", "spaces": [data]}
    with pytest.raises(ValueError, match="at most 32 spaces within each other"):
        from_json(data)


def test_a_bound_beyond_the_dtype_is_none() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert from_json(BOX | {"low": -1e300, "high": 1e39}) == spaces.Box(-np.inf, np.inf, (2,))
