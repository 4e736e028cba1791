"""Values from an env: each is judged before NumPy converts it, in one place for every kind of env.

| what | taken | refused, with key, expected and got |
|---|---|---|
| an array | arrays, lists, buffers, tensors (without their gradient), ``__array__``, ``__dlpack__`` | any other object |
| a reward | one number: Python's, NumPy's, or an array without axes | texts, None, Decimal, arrays with axes |
| a flag | True, False, and numbers equal to 1 or 0 | nan, 2, texts, None, arrays with axes |
| an observation | the shape of its space and a dtype of the same kind that holds the value | any other |

A vector env gives an array [B] of each, or a list of B values.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from equipoise import foreign, tree
from equipoise.envs.failures.row_checks import WrongValue, invalid
from equipoise.envs.spaces import member
from equipoise.tree import ArraySpec
from equipoise.types import Array, Tree

NUMBER, FLAG = "a number", "True or False"
FLAGS = frozenset((bool, np.bool_))  # types that need no look: other types are judged
NUMBERS = FLAGS | {
    int,
    float,
    np.float16,
    np.float32,
    np.float64,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.uint8,
    np.uint16,
    np.uint32,
    np.uint64,
}


class NoArray(ValueError):
    """The error of a value that is no array; its text is the reason, or is empty."""


def plain(value: Any) -> Array:
    """``value`` as an array of anything but objects, texts included; NoArray if it cannot be an
    array.

    Without a tensor's gradient; an array of objects by its elements; masked values are no numbers.
    """
    why = ""
    if hidden(value):
        raise NoArray(" (some of it is masked)")
    try:
        array = np.asarray(value)
        if array.dtype.kind != "O":
            return array
        if isinstance(value, np.ndarray):
            return plain(value.tolist())
    except NoArray:
        raise
    except Exception as error:  # a foreign array may raise anything
        why = f" ({type(error).__name__}: {' '.join(str(error).split())[:80]})"
    for way in (_detached, np.from_dlpack):
        try:
            array = np.asarray(way(value))
            if array.dtype.kind != "O":
                return array
        except Exception:
            continue
    if isinstance(value, list | tuple):
        try:
            return np.stack([plain(one) for one in value])
        except (ValueError, RecursionError):  # a part that is no array, or parts of several shapes
            why = " (its parts are no numbers of one shape)"
    raise NoArray(why)


def hidden(value: object) -> bool:
    """Is it a masked array of ``numpy.ma``, or a list or tuple with one?"""
    if isinstance(value, list | tuple):
        return any(
            type(one) not in NUMBERS and isinstance(one, np.ma.MaskedArray) and hidden(one)
            for one in value
        )
    return isinstance(value, np.ma.MaskedArray) and bool(np.ma.getmaskarray(value).any())


def _detached(value: Any) -> Any:
    """A tensor on the host and without its gradient; one of a dtype that NumPy lacks as float32."""
    held = value.detach().cpu()
    try:
        return np.asarray(held)
    except TypeError:
        return held.float().numpy()


def number(value: object, index: int | None, key: str, expected: str = NUMBER) -> Array:
    """The number that ``value`` is, else WrongValue; ``index``: the stream's place in the batch."""
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:  # NumPy makes an object of it
        try:
            return float(value)
        except OverflowError:
            raise WrongValue(
                "nonfinite", index, key, "a finite number", "one beyond all floats"
            ) from None
    if type(value) in NUMBERS:
        return value
    try:
        array = plain(value)
    except NoArray as error:
        raise invalid(index, key, expected, f"{described(value)}{error}") from None
    if array.shape or array.dtype.kind not in "biuf":
        raise invalid(index, key, expected, described(value))
    return array[()]


def flag(value: object, index: int | None, key: str) -> bool:
    """True or False; WrongValue for anything but these and numbers equal to them."""
    if type(value) in FLAGS:
        return bool(value)
    if (read := number(value, index, key, FLAG)) not in (0, 1):
        raise invalid(index, key, FLAG, described(value))
    # the truth of another library's object may not depend on its value
    return bool(read)


def numbers(value: Array, count: int, key: str) -> Array:
    """The numbers [B] of a vector env."""
    if type(value) is np.ndarray and value.shape == (count,) and value.dtype.kind in "fiub":
        return value
    return _column(value, count, key, NUMBER, number)


def flags(value: Array, count: int, key: str) -> Array:
    """The flags [B] bool of a vector env."""
    if type(value) is np.ndarray and value.shape == (count,) and value.dtype.kind == "b":
        return value
    return _column(value, count, key, FLAG, flag)


def _column(
    value: object, count: int, key: str, expected: str, one: Callable[..., object]
) -> Array:
    try:
        given = (
            value if isinstance(value, list | tuple) or type(value) is np.ndarray else plain(value)
        )
    except NoArray as error:
        raise invalid(None, key, f"{expected} of each env", f"{described(value)}{error}") from None
    shape = given.shape if isinstance(given, np.ndarray) else (len(given),)
    if shape != (count,):
        got = (
            described(value)
            if isinstance(value, np.ndarray)
            else f"{len(shape) and shape[0]} in {described(value)}"
        )
        raise invalid(None, key, f"{expected} of each env, shape [{count}]", got)
    if (
        isinstance(given, np.ndarray)
        and given.dtype.kind in "biuf"
        and (one is number or np.isin(given, (0, 1)).all())
    ):
        return given if one is number else given.astype(np.bool_)
    return np.array([one(each, i, key) for i, each in enumerate(given)])


def taken(spec: Tree, value: Tree, index: int | None, key: str = "obs") -> Tree:
    """The arrays of an observation of these specs; WrongValue names the part that is no array."""
    if isinstance(spec, dict):
        if isinstance(value, tuple | list):
            whole = list(spec) == [str(i) for i in range(len(value))]
        else:
            whole = isinstance(value, Mapping) and not spec.keys() - value.keys()
        if not whole:
            got = (
                f"a dict of {sorted(map(str, value))}"
                if isinstance(value, Mapping)
                else described(value)
            )
            tuples = (
                f", or a tuple of {len(spec)}"
                if list(spec) == [str(i) for i in range(len(spec))]
                else ""
            )
            raise invalid(index, key, f"a dict with the keys {sorted(spec)}{tuples}", got)
        return {
            name: taken(inner, member(value, name), index, f"{key}/{name}")
            for name, inner in spec.items()
        }
    assert isinstance(spec, ArraySpec)
    dtype, expected = np.dtype(spec.dtype), f"{spec.dtype} {list(spec.shape)}"
    try:
        array = plain(value)
    except NoArray as error:
        raise invalid(index, key, expected, f"{described(value)}{error}") from None
    if array.shape != spec.shape or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise invalid(index, key, expected, f"{array.dtype} {list(array.shape)}")
    if dtype.kind in "iu" and array.size and not np.can_cast(array.dtype, dtype):
        limits, least, most = np.iinfo(spec.dtype), array.min(), array.max()
        if least < limits.min or most > limits.max:
            got = f"{array.dtype} {least if least < limits.min else most}"
            raise invalid(index, key, f"{expected}, from {limits.min} to {limits.max}", got)
    return array


def uncast(
    space: spaces.Space[object], index: int, obs: object, key: str = "obs"
) -> WrongValue | None:
    """The first part of an observation that has to be cast: no array, or another dtype."""
    if (inside := tree.branches(space)) is not None:
        found = (
            uncast(inner, index, member(obs, name), f"{key}/{name}")
            for name, inner in inside.items()
        )
        return next((wrong for wrong in found if wrong is not None), None)
    dtype = foreign.optional(obs, "dtype")
    if not isinstance(space, spaces.Box) or dtype == space.dtype:
        return None
    got = f"a {type(obs).__name__} of {plain(obs).dtype}" if dtype is None else described(obs)
    return WrongValue("cast", index, key, f"{space.dtype} {list(space.shape)}", got)


def described(value: object) -> str:
    """Describe any value from an env in a few words."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    try:
        text = repr(value)
    except Exception as error:  # a user's own class may do anything
        text = f"(its repr raised {type(error).__name__})"
    return (
        f"{' '.join(text.split())[:60]}{'...' if len(text) > 60 else ''} of {type(value).__name__}"
    )
