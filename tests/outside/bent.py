"""Values in another form than most envs give: of an observation, a number, a flag, a mask, an info.

Each function returns the value and whether it was bent at all: nan, say, is for floats alone.
"""

from __future__ import annotations

import decimal
import fractions
from collections import OrderedDict, UserDict
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces


class Foreign:
    """An array of another library: it has ``__array__`` and no more."""

    def __init__(self, value: Any) -> None:
        self._value = np.asarray(value)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._value if dtype is None else self._value.astype(dtype)

    def __repr__(self) -> str:
        return f"Foreign({self._value.shape})"


def tensor(value: Any, *, grad: bool = False) -> Any:
    import torch

    made = torch.from_numpy(np.array(value))
    return made.requires_grad_() if grad and made.is_floating_point() else made


BUFFERS: dict[Any, Any] = {}


def leaf(array: Any, space: spaces.Space[Any], way: str, place: Any) -> tuple[Any, bool]:
    """One array of an observation, also of a batch of them."""
    x, kind = np.asarray(array), np.asarray(array).dtype.kind
    simple: dict[str, Callable[[], Any]] = {
        "python": x.tolist,
        "zero_d": lambda: np.array(x),
        "torch": lambda: tensor(x),
        "foreign": lambda: Foreign(x),
        "fortran": lambda: np.asfortranarray(x),
        "big_endian": lambda: x.astype(x.dtype.newbyteorder(">")),
        "none": lambda: None,
        "text": lambda: "left",
        "number_text": lambda: "1",
        "object": lambda: x.astype(object),
        "mapping": lambda: {"x": x},
        "masked_array": lambda: np.ma.masked_array(x),
        "complex": lambda: x.astype(np.complex64),
        "one": lambda: x[None],
        "ragged": lambda: [[1], [1, 2]],
    }
    if way in simple:
        return simple[way](), True
    if way == "readonly":
        x = np.array(x)
        x.flags.writeable = False
        return x, True
    if way == "reused":
        buffer = BUFFERS.setdefault(place, np.array(x))
        buffer[...] = x
        return buffer, True
    if (way == "float64" and kind == "f") or (
        way == "int64" and kind in "iu" and x.dtype != np.uint64
    ):
        return x.astype(way), True
    if way == "grad" and kind == "f":
        return tensor(x, grad=True), True
    if way in ("nan", "inf") and kind == "f" and x.size:
        x = np.array(x)
        x.flat[-1] = float(way)
        return x, True
    if way in ("short", "longer") and x.ndim and x.shape[-1]:
        return (x[..., :-1] if way == "short" else np.concatenate([x, x[..., :1]], axis=-1)), True
    if way == "outside" and x.size:
        high = getattr(space, "high", None)
        if isinstance(space, spaces.Discrete):
            beyond: Any = int(space.start) + int(space.n)
        elif (
            high is None
            or kind == "b"
            or not (float(np.max(high)) < (1e6 if kind == "f" else float(np.iinfo(x.dtype).max)))
        ):
            return array, False
        else:
            beyond = np.max(high) + 1
        x = np.array(x)
        x.flat[0] = beyond
        return x, True
    return array, False


def observation(
    value: Any, space: spaces.Space[Any], way: str, place: Any = ()
) -> tuple[Any, bool]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        bent = {key: observation(value[key], one, way, (place, key)) for key, one in parts}
        did = any(one for _, one in bent.values())
        made: Any = {key: one for key, (one, _) in bent.items()}
        if isinstance(space, spaces.Tuple):
            return (list(made.values()), True) if way == "tuples" else (tuple(made.values()), did)
        if way == "extra_key":
            return {**made, "more": 1.0}, True
        if way == "missing_key" and made:
            made.pop(next(iter(made)))
            return made, True
        if way == "mapping":
            return UserDict({key: value[key] for key in made}), True
        return OrderedDict(
            reversed(made.items())
        ) if way == "tuples" else made, did or way == "tuples"
    return leaf(value, space, way, place)


def number(value: float, way: str) -> tuple[Any, bool]:
    """A reward, or the rewards of a batch."""
    x = np.asarray(value)
    batch = x.ndim > 0
    simple: dict[str, Callable[[], Any]] = {
        "int": lambda: x.astype(int) if batch else int(value),
        "bool": lambda: x > 3 if batch else value > 3,
        "zero_d": lambda: np.array(value),
        "one": lambda: x[..., None],
        "list": lambda: x.tolist() if batch else [float(value)],
        "torch": lambda: tensor(x),
        "torch_one": lambda: tensor(x[..., None]),
        "grad": lambda: tensor(x, grad=True),
        "none": lambda: [None] * len(x) if batch else None,
        "text": lambda: x.astype(str) if batch else "won",
        "number_text": lambda: [str(one) for one in x] if batch else str(value),
        "bytes": lambda: b"1",
        "nan": lambda: x * np.nan,
        "inf": lambda: x * np.inf,
        "huge": lambda: x * 1e300,
        "complex": lambda: x + 1j,
        "foreign": lambda: Foreign(x),
        "object": lambda: x.astype(object),
        "decimal": lambda: (
            [decimal.Decimal(float(one)) for one in x] if batch else decimal.Decimal(float(value))
        ),
        "fraction": lambda: (
            [fractions.Fraction(float(one)) for one in x]
            if batch
            else fractions.Fraction(float(value))
        ),
    }
    return simple[way]() if way in simple else x.astype(way)[()], True


def flag(value: Any, way: str) -> tuple[Any, bool]:
    """One of the flags, or those of a batch."""
    x = np.asarray(value, np.bool_)
    batch = x.ndim > 0
    simple: dict[str, Callable[[], Any]] = {
        "numpy": lambda: x[()],
        "int": lambda: x.astype(int) if batch else int(value),
        "float": lambda: x.astype(float)[()],
        "zero_d": lambda: np.array(x),
        "one": lambda: x[..., None],
        "torch": lambda: tensor(x),
        "none": lambda: [None] * len(x) if batch else None,
        "text": lambda: np.where(x, "yes", "no")[()],
        "number_text": lambda: np.where(x, "1", "0")[()],
        "two": lambda: x.astype(int)[()] * 2,
        "foreign": lambda: Foreign(x),
        "nan": lambda: np.where(x, 1.0, np.nan)[()],
        "object": lambda: x.astype(object),
        "list": lambda: x.tolist() if batch else [bool(value)],
        "grad": lambda: tensor(x.astype(np.float32), grad=True),
    }
    return simple[way](), way != "nan" or not x.all()


def mask(allowed: Any, counts: list[int], way: str) -> tuple[Any, bool]:
    """A mask [n] bool in another form; ``counts``: the values of each choice."""
    x = np.asarray(allowed)
    some = x.astype(np.float32)
    simple: dict[str, Callable[[], Any]] = {
        "bool": lambda: x,
        "list": lambda: x.astype(int).tolist(),
        "python_bools": x.tolist,
        "torch": lambda: tensor(x),
        "tuple": lambda: tuple(
            part.astype(np.int8) for part in np.split(x, np.cumsum(counts)[:-1])
        ),
        "foreign": lambda: Foreign(x.astype(np.int8)),
        "row": lambda: x.astype(np.int8)[None],
        "nan": lambda: np.where(np.arange(len(x)) == 0, np.nan, some),
        "inf": lambda: np.where(x, np.inf, 0.0),
        "negative": lambda: np.where(x, 1, -1),
        "half": lambda: some / 2,
        "two": lambda: x.astype(int) * 2,
        "nothing": lambda: x.astype(np.int8) * 0,
        "short": lambda: x.astype(np.int8)[:-1],
        "none": lambda: None,
        "text": lambda: "all",
        "longer": lambda: np.append(x, True).astype(np.int8),
        "object": lambda: x.astype(object),
        "all": lambda: np.ones(len(x), np.int8),
    }
    bends = way != "int8" and (way != "negative" or not x.all())
    return simple[way]() if way in simple else x.astype(
        way if way in ("float64", "int64", "uint8") else np.int8
    ), bends


def info(t: int, way: str) -> Any:
    simple: dict[str, Any] = {
        "none": None,
        "list": [1],
        "changing": {f"key{t % 3}": t},
        "arrays": {"a": np.arange(3), "b": np.zeros((2, 2))},
        "text": "none",
        "nested": {"a": {"b/c": {"d": t}}, "a/b": 1},
        "number_keys": {1: 2, None: 3, ("a", 1): 4},
        "numbers": {"x": np.float32(t), "y": t},
        "tensor": {"x": tensor(np.float32(t))},
        "time_limit": {"TimeLimit.truncated": t == 2},
        "mapping": UserDict({"x": t}),
    }
    return simple[way]
