"""Schemas: the allowed form of a value that was read from a file. ``check`` raises a ValueError
that names the place.

A schema is one of the classes here, or a dict of them by key. A key that ends in "?" may be
missing, the key "*" stands for all others, and without it no other key is allowed::

    check(data, {"version": Number(0, whole=True), "notes?": Items(Text()), "*": Anything()}, "meta.json")
"""  # noqa: E501

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

# the start of a place within a file
FILE = re.compile(r"\.(json|jsonl|safetensors|toml)(, line \d+)?$")
LARGEST = sys.float_info.max
MOST = 1 << 53  # of a count: a version, a step, a row
LONGEST = 200  # letters of a value that an error shows
Schema = Any  # a class of this file, or a dict of schemas by key


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number within a range, both ends included."""

    low: float = -LARGEST
    high: float = LARGEST
    whole: bool = False

    def problem(self, value: Any) -> str | None:
        kinds = int if self.whole else (int, float)
        right = (
            isinstance(value, kinds)
            and not isinstance(value, bool)
            and self.low <= value <= self.high
        )
        return None if right else self.words

    @property
    def words(self) -> str:
        noun = "a whole number" if self.whole else "a number"
        if self.high < LARGEST:
            return f"{noun} from {self.low:,} to {self.high:,}"
        return f"{noun} of at least {self.low:,}" if self.low > -LARGEST else noun


@dataclass(frozen=True, slots=True)
class Text:
    """A text, one of ``among`` if that is given."""

    most: int = 1 << 20
    among: tuple[str, ...] = ()

    def problem(self, value: Any) -> str | None:
        if self.among:
            return (
                None
                if isinstance(value, str) and value in self.among
                else f"one of {', '.join(map(repr, self.among))}"
            )
        return (
            None
            if isinstance(value, str) and len(value) <= self.most
            else f"a text of at most {self.most:,} letters"
        )


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    def problem(self, value: Any) -> str | None:
        return None if isinstance(value, bool) else "true or false"


@dataclass(frozen=True, slots=True)
class Maybe:
    """The inner schema, or null."""

    inner: Schema


@dataclass(frozen=True, slots=True)
class Either:
    """A value that fits at least one of the schemas."""

    schemas: tuple[Schema, ...]


@dataclass(frozen=True, slots=True)
class Items:
    """A list whose every item fits ``inner``."""

    inner: Schema
    most: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """A list of as many items as there are schemas."""

    schemas: tuple[Schema, ...]


@dataclass(frozen=True, slots=True)
class Each:
    """An object with texts as keys, whose every value fits ``inner``."""

    inner: Schema
    most: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Anything:
    """Any value: another check looks at it."""


@dataclass(frozen=True, slots=True)
class Array:
    """A numpy array or a tensor of this type and shape (None: any size), whose numbers lie from
    ``low`` to ``high``.
    """

    shape: tuple[int | None, ...]
    dtype: str
    low: float = -math.inf
    high: float = math.inf
    tensor: bool = False
    finite: bool = False  # neither nan nor an infinity

    def problem(self, value: Any) -> str | None:
        if (
            isinstance(value, np.ndarray | np.generic)
            if self.tensor
            else not isinstance(value, np.ndarray | np.generic)
        ):
            return self.words
        dtype, shape = (
            str(getattr(value, "dtype", "")).removeprefix("torch."),
            tuple(getattr(value, "shape", ())),
        )
        fits = len(shape) == len(self.shape) and all(
            n is None or n == m for n, m in zip(self.shape, shape, strict=False)
        )
        if dtype != self.dtype or not fits:
            return self.words
        bounded = math.isfinite(self.low) or math.isfinite(self.high)
        if (
            bounded
            and math.prod(shape)
            and not (self.low <= value.min() and value.max() <= self.high)
        ):
            return f"{self.words} from {self.low:,} to {self.high:,}"
        if (
            self.finite
            and math.prod(shape)
            and not (-math.inf < value.min() and value.max() < math.inf)
        ):
            return f"{self.words} of finite numbers"
        return None

    @property
    def words(self) -> str:
        sizes = ", ".join("any" if n is None else str(n) for n in self.shape)
        return f"{'a tensor' if self.tensor else 'an array'} {self.dtype} [{sizes}]"


def check(value: Any, schema: Schema, where: str) -> Any:
    """Return ``value`` as it is; ValueError naming the place within it, the expected value and the
    given one.
    """
    if isinstance(schema, dict):
        _check_object(value, schema, where)
    elif isinstance(schema, Maybe):
        if value is not None:
            check(value, schema.inner, where)
    elif isinstance(schema, Either):
        _check_either(value, schema, where)
    elif isinstance(schema, Items | Row):
        _check_list(value, schema, where)
    elif isinstance(schema, Each):
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise _wrong(where, "a JSON object", value)
        if len(value) > schema.most:
            raise ValueError(f"{where}: expected at most {schema.most:,} keys, got {len(value):,}")
        for key, item in value.items():
            check(item, schema.inner, _within(where, key))
    elif not isinstance(schema, Anything) and (expected := schema.problem(value)) is not None:
        raise _wrong(where, expected, value)
    return value


def like(template: Any, *, finite: bool = False) -> Schema:
    """The schema of a tree of arrays, numbers and texts: the same keys, types and shapes, and any
    values.

    ``finite``: an array of floats has no nan and no infinity.
    """
    if isinstance(template, Mapping):
        return {key: like(value, finite=finite) for key, value in template.items()}
    if template is None:
        return Maybe(Anything())
    if isinstance(template, bool):
        return Flag()
    if isinstance(template, int | float):
        return Number(whole=isinstance(template, int))
    if isinstance(template, str):
        return Text()
    tensor = not isinstance(template, np.ndarray | np.generic)
    dtype = str(template.dtype).removeprefix("torch.")
    return Array(tuple(template.shape), dtype, tensor=tensor, finite=finite and "float" in dtype)


def count(value: int = 0) -> Number:
    """The schema of a count of at least ``value``."""
    return Number(value, MOST, whole=True)


def _check_object(value: Any, schema: Mapping[str, Schema], where: str) -> None:
    if not isinstance(value, Mapping):
        raise _wrong(where, "a JSON object", value)
    known = {key.removesuffix("?"): inner for key, inner in schema.items() if key != "*"}
    others = {str(key): item for key, item in value.items() if key not in known}
    if others and "*" not in schema:
        raise ValueError(
            f"{_within(where, next(iter(others)))}: expected no such key (known: "
            f"{', '.join(known)}), got one"
        )
    for key, item in others.items():
        check(item, schema["*"], _within(where, key))
    for key, inner in schema.items():
        if key == "*":
            continue
        name = key.removesuffix("?")
        if name in value:
            check(value[name], inner, _within(where, name))
        elif name == key:
            raise ValueError(f"{_within(where, name)}: expected a value, got none")


def _check_either(value: Any, schema: Either, where: str) -> None:
    problems = []
    for inner in schema.schemas:
        try:
            check(value, inner, where)
        except ValueError as error:
            problems.append(str(error))
        else:
            return
    raise ValueError(problems[0])


def _check_list(value: Any, schema: Items | Row, where: str) -> None:
    if not isinstance(value, list):
        raise _wrong(where, "a list", value)
    if isinstance(schema, Items):
        if len(value) > schema.most:
            raise ValueError(f"{where}: expected at most {schema.most:,} items, got {len(value):,}")
        inners = [schema.inner] * len(value)
    else:
        if len(value) != len(schema.schemas):
            raise ValueError(f"{where}: expected {len(schema.schemas)} items, got {len(value):,}")
        inners = list(schema.schemas)
    for i, (item, inner) in enumerate(zip(value, inners, strict=True)):
        check(item, inner, f"{where}[{i}]")


def _within(where: str, key: str) -> str:
    return f"{where}{': ' if FILE.search(where) else '.'}{key}" if where else key


def _wrong(where: str, expected: str, value: Any) -> ValueError:
    return ValueError(f"{where}: expected {expected}, got {described(value)}")


def described(value: Any) -> str:
    """A value in an error: its shape if it is an array, and never more than ``LONGEST`` letters."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        kind = "an array" if isinstance(value, np.ndarray | np.generic) else "a tensor"
        bounds = (
            f" from {value.min():,} to {value.max():,}"
            if math.prod(value.shape) and value.dtype != bool
            else ""
        )
        return f"{kind} {str(value.dtype).removeprefix('torch.')} {list(value.shape)}{bounds}"
    if isinstance(value, Mapping):
        return "a JSON object"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**LONGEST:
        return f"a whole number of more than {LONGEST} digits"
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
