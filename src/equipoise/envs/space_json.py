"""Spaces as JSON and back, so that a policy can be played if its env's package is not installed.

    Box             {"type": "Box", "shape": [3], "dtype": "float32", "low": -1.0, "high": [1.0, 2.0, "inf"]}
    Discrete        {"type": "Discrete", "n": 4, "start": 0, "dtype": "int64"}
    MultiDiscrete   {"type": "MultiDiscrete", "nvec": [[2, 3]], "start": 0, "dtype": "int64"}
    MultiBinary     {"type": "MultiBinary", "n": [2, 3]}
    Dict            {"type": "Dict", "spaces": [["key", {...}], ...]}, in the space's own order
    Tuple           {"type": "Tuple", "spaces": [{...}, ...]}

An array whose numbers are all the same is one number. A number is written so that its dtype reads
the same bits; infinities are the texts "inf" and "-inf". A subclass of such a space is written as
that space.
"""  # noqa: E501

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from equipoise.envs.hints import UnsupportedSpace
from equipoise.hints import shortened
from equipoise.types import Array

DEPTH = 32  # of spaces within spaces
MOST_NUMBERS = 1 << 24  # of a Box; the shape that is read may come from a foreign file
KINDS = "Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
FLOATS, WHOLE = (
    ("float16", "float32", "float64"),
    tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)
DTYPES = {"Box": (*FLOATS, *WHOLE, "bool"), "Discrete": WHOLE, "MultiDiscrete": WHOLE}


def to_json(space: spaces.Space[object], place: str = "space") -> dict[str, object]:
    """Write a space as plain JSON; UnsupportedSpace names the place of one without such a form."""
    if isinstance(space, spaces.Box) and math.prod(space.shape) <= MOST_NUMBERS:
        shape, dtype = list(space.shape), str(space.dtype)
        return {
            "type": "Box",
            "shape": shape,
            "dtype": dtype,
            "low": _numbers(space.low),
            "high": _numbers(space.high),
        }
    if isinstance(space, spaces.Discrete):
        return {
            "type": "Discrete",
            "n": int(space.n),
            "start": int(space.start),
            "dtype": str(space.dtype),
        }
    if isinstance(space, spaces.MultiDiscrete):
        nvec: Any = space.nvec.tolist()
        return {
            "type": "MultiDiscrete",
            "nvec": nvec,
            "start": _numbers(space.start),
            "dtype": str(space.dtype),
        }
    if isinstance(space, spaces.MultiBinary):
        return {
            "type": "MultiBinary",
            "n": space.n if isinstance(space.n, int) else [int(n) for n in np.ravel(space.n)],
        }
    if isinstance(space, spaces.Dict):
        return {
            "type": "Dict",
            "spaces": [[key, to_json(one, f"{place}/{key}")] for key, one in space.spaces.items()],
        }
    if isinstance(space, spaces.Tuple):
        return {
            "type": "Tuple",
            "spaces": [to_json(one, f"{place}/{i}") for i, one in enumerate(space.spaces)],
        }
    raise UnsupportedSpace(
        f"{place}: expected a {KINDS} space of at most {MOST_NUMBERS:,} numbers, got {space}"
    )


def _numbers(array: Array) -> object:
    """One number if all are the same, else nested lists."""
    flat = np.asarray(array).reshape(-1)
    same = len(flat) > 0 and bool((flat == flat[0]).all())
    values = flat[:1].tolist() if same else flat.tolist()
    said = [
        _text(value) if isinstance(value, float) and math.isinf(value) else value
        for value in values
    ]
    return said[0] if same else _nested(said, np.shape(array))


def _text(value: float) -> str:
    return "inf" if value > 0 else "-inf"


def _nested(flat: list[object], shape: tuple[int, ...]) -> object:
    if len(shape) < 2:
        return flat
    size = len(flat) // max(shape[0], 1)
    return [_nested(flat[i * size : (i + 1) * size], shape[1:]) for i in range(shape[0])]


def from_json(data: object, place: str = "space", depth: int = 0) -> spaces.Space[object]:
    """Read what ``to_json`` wrote; ValueError names the place of anything else."""
    if depth > DEPTH:
        raise ValueError(f"{place}: expected at most {DEPTH} spaces within each other, got more")
    if (
        not isinstance(data, Mapping)
        or not isinstance(kind := data.get("type"), str)
        or (read := READERS.get(kind)) is None
    ):
        raise ValueError(
            f"{place}: expected a JSON object whose 'type' is {KINDS}, got {shortened(repr(data))}"
        )
    try:
        return read(data, place, depth)
    except KeyError as error:
        raise ValueError(
            f"{place}: expected a {kind} with the key {error}, got {sorted(map(str, data))}"
        ) from error
    except (TypeError, AssertionError, OverflowError) as error:
        raise ValueError(
            f"{place}: expected a {kind} space, got one that Gymnasium refuses: {error}"
        ) from error


def _box(data: Mapping[str, object], place: str, depth: int) -> spaces.Space[object]:
    shape, dtype = _shape(data["shape"], f"{place}.shape"), _dtype(data, place)
    low, high = (_array(data[name], shape, dtype, f"{place}.{name}") for name in ("low", "high"))
    if not ((low <= high) & (low < math.inf) & (high > -math.inf)).all():
        raise ValueError(
            f"{place}.low: expected bounds of {dtype} with a finite number between them, got others"
        )
    return spaces.Box(low, high, shape, dtype.type)


def _discrete(data: Mapping[str, object], place: str, depth: int) -> spaces.Space[object]:
    n, start, dtype = (
        _whole(data["n"], f"{place}.n", 1),
        _whole(data["start"], f"{place}.start"),
        _dtype(data, place),
    )
    _fits(n, start, dtype, f"{place}.n")
    return spaces.Discrete(n, start=start, dtype=dtype.type)


def _multi_discrete(data: Mapping[str, object], place: str, depth: int) -> spaces.Space[object]:
    dtype, counts = _dtype(data, place), data["nvec"]
    nvec = np.array(counts) if isinstance(counts, list) else np.zeros(0)
    if nvec.dtype.kind != "i" or not nvec.size or int(nvec.min()) < 1:
        raise ValueError(
            f"{place}.nvec: expected whole numbers of at least 1, got {shortened(repr(counts))}"
        )
    start = _array(data["start"], nvec.shape, dtype, f"{place}.start")
    for n, first in zip(nvec.flat, start.flat, strict=True):
        _fits(int(n), int(first), dtype, f"{place}.nvec")
    return spaces.MultiDiscrete(nvec.astype(dtype), dtype=dtype.type, start=start)


def _multi_binary(data: Mapping[str, object], place: str, depth: int) -> spaces.Space[object]:
    n = data["n"]
    return spaces.MultiBinary(
        list(_shape(n, f"{place}.n")) if isinstance(n, list) else _whole(n, f"{place}.n", 1)
    )


def _dict(data: Mapping[str, object], place: str, depth: int) -> spaces.Space[object]:
    pairs = data["spaces"]
    if (
        not isinstance(pairs, list)
        or not pairs
        or not all(
            isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) for one in pairs
        )
    ):
        raise ValueError(
            f"{place}.spaces: expected a list of [key, space], got {shortened(repr(pairs))}"
        )
    return spaces.Dict(
        OrderedDict((key, from_json(one, f"{place}/{key}", depth + 1)) for key, one in pairs)
    )


def _tuple(data: Mapping[str, object], place: str, depth: int) -> spaces.Space[object]:
    if not isinstance(parts := data["spaces"], list) or not parts:
        raise ValueError(f"{place}.spaces: expected a list of spaces, got {shortened(repr(parts))}")
    return spaces.Tuple([from_json(one, f"{place}/{i}", depth + 1) for i, one in enumerate(parts)])


READERS = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": _multi_binary,
    "Dict": _dict,
    "Tuple": _tuple,
}


def _whole(value: object, place: str, least: int | None = None) -> int:
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or (least is not None and value < least)
    ):
        wanted = "a whole number" + (f" of at least {least}" if least is not None else "")
        raise ValueError(f"{place}: expected {wanted}, got {shortened(repr(value))}")
    return value


def _shape(value: object, place: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{place}: expected a list of sizes, got {shortened(repr(value))}")
    shape = tuple(_whole(one, place, 0) for one in value)
    if math.prod(shape) > MOST_NUMBERS or len(shape) > DEPTH:
        raise ValueError(
            f"{place}: expected a shape of at most {MOST_NUMBERS:,} numbers, got "
            f"{shortened(repr(value))}"
        )
    return shape


def _dtype(data: Mapping[str, object], place: str) -> np.dtype:
    known = DTYPES[str(data["type"])]
    if (name := data["dtype"]) not in known:
        raise ValueError(
            f"{place}.dtype: expected one of {', '.join(known)}, got {shortened(repr(name))}"
        )
    made: np.dtype = np.dtype(name)
    return made


def _fits(n: int, start: int, dtype: np.dtype, place: str) -> None:
    """ValueError if the dtype cannot hold ``n``, or the last of ``n`` values from ``start``."""
    most = int(np.iinfo(dtype).max)
    if n > most or start + n - 1 > most:
        raise ValueError(
            f"{place}: expected values of {dtype}, at most {most:,}, got {n:,} values from "
            f"{start:,}"
        )


def _array(value: object, shape: tuple[int, ...], dtype: np.dtype, place: str) -> Array:
    """One number for all places, or nested lists of the shape; the dtype must hold every one."""

    def number(one: object) -> object:
        if isinstance(one, list):
            return [number(inner) for inner in one]
        said = {"inf": math.inf, "-inf": -math.inf}.get(one) if isinstance(one, str) else one
        if not isinstance(said, int | float) or (isinstance(said, bool) and dtype.kind != "b"):
            raise ValueError(f"{place}: expected numbers, got {shortened(repr(one))}")
        return said

    try:
        with np.errstate(over="ignore"):  # a bound beyond the dtype's is no bound
            read = np.array(number(value), dtype)
        if 0 in shape and not read.size:
            return read.reshape(shape)  # lists end at the first axis without elements
        if read.shape not in ((), shape):
            raise ValueError(
                f"expected one number or the shape {list(shape)}, got {list(read.shape)}"
            )
    except (ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{place}: expected {dtype} numbers: {error}") from error
    return np.full(shape, read, dtype) if read.shape == () else read
