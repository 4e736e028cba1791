"""Numbers from an env's ``info``, by name, as one array a step: the numbers that
``Program.source.metrics`` asks for.

A name is a key of ``info``, or a path of keys ("episode/r"); a key that has a slash itself is also
found. A name that is absent (or None) in a step gives nan. Nothing of an ``info`` dict is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from equipoise.envs.values import NUMBERS, NoArray, described, flags, plain
from equipoise.errors import Final
from equipoise.types import Array, Tree

_ABSENT: object = object()


class NoNumber(Final, ValueError):
    """The error of a metric name whose value is no number."""


class Infos:
    """The last step's numbers: ``value`` [B, M] float64 for B streams and the M ``names``."""

    def __init__(self, names: Sequence[str], streams: int) -> None:
        self.names = tuple(names)
        self.value = np.full((streams, len(self.names)), np.nan)
        self.seen: set[str] | None = None  # every name that appeared; None: not collected

    def read_one(self, i: int, info: Tree) -> None:
        """Read the row of stream ``i`` from its own ``info``; NoNumber if a value is no number.

        An ``info`` that is no dict has no names.
        """
        if not isinstance(info, Mapping):
            info = {}
        if self.seen is not None:
            self.seen.update(paths(info))
        for j, name in enumerate(self.names):
            found = info.get(name, _ABSENT)
            if found is _ABSENT and "/" in name:
                found = _find(info, name)
            self.value[i, j] = np.nan if found is _ABSENT or found is None else _number(found, name)

    def read_all(self, info: Tree, rows: Array | None = None) -> None:
        """Read all rows, or ``rows`` [B] bool, from a vector env's ``info``: arrays [B] with masks
        ``_key``.

        A list with a dict for each env is also read.
        """
        count = len(self.value)
        if (
            isinstance(info, list | tuple | np.ndarray)
            and np.ndim(info) == 1
            and len(info) == count
        ):
            for i in range(count) if rows is None else np.flatnonzero(rows).tolist():
                self.read_one(i, info[i])
            return
        if not isinstance(info, Mapping):
            info = {}
        if self.seen is not None:
            self.seen.update(paths(info))
        for j, name in enumerate(self.names):
            found, mask = _column(info, name)
            column = _numbers(found, mask, count, name)
            np.copyto(self.value[:, j], column, where=True if rows is None else rows)


def paths(
    info: Mapping[Any, object], before: str = "", above: tuple[int, ...] = ()
) -> Iterator[str]:
    """Return the names of an ``info``, nested ones as paths, without the masks of vector envs."""
    for key, value in info.items():
        if not isinstance(key, str) or (key[:1] == "_" and key[1:] in info):
            continue
        if isinstance(value, Mapping):
            if id(value) not in (inside := (*above, id(info))):  # a dict may hold itself
                yield from paths(value, f"{before}{key}/", inside)
        else:
            yield f"{before}{key}"


def _find(info: Mapping[str, Tree], name: str) -> Tree:
    if name in info:
        return info[name]
    for inner, rest in _below(info, name):
        if (found := _find(info[inner], rest)) is not _ABSENT:
            return found
    return _ABSENT


def _below(info: Mapping[str, object], name: str) -> Iterator[tuple[str, str]]:
    """Each key that a name may begin with, and the rest: a key may have a slash itself."""
    for i, letter in enumerate(name):
        if letter == "/" and isinstance(info.get(name[:i]), Mapping):
            yield name[:i], name[i + 1 :]


def _column(info: Mapping[str, Tree], name: str) -> tuple[Array, Array]:
    """The array behind a name and the mask of its rows (None: all), or ``_ABSENT``."""
    if name in info:
        return info[name], info.get(f"_{name}")
    for inner, rest in _below(info, name):
        found, mask = _column(info[inner], rest)
        if found is not _ABSENT:
            outer = info.get(f"_{inner}")
            return found, mask if outer is None else outer if mask is None else np.logical_and(
                mask, outer
            )
    return _ABSENT, None


def _number(value: Any, name: str) -> float:
    if type(value) in NUMBERS:
        try:
            return float(value)
        except OverflowError:
            raise NoNumber(
                f"metrics: expected a number in the env's info[{name!r}], got one beyond all floats"
            ) from None
    try:
        array = plain(value)
    except NoArray:
        array = None
    if array is not None and array.size == 1 and array.dtype.kind in "biuf":
        return float(array.reshape(()))
    shape = "" if array is None or not array.shape else f" of shape {list(array.shape)}"
    raise NoNumber(
        f"metrics: expected a number in the env's info[{name!r}], got {type(value).__name__}{shape}"
    )


def _numbers(found: Array, mask: Array, count: int, name: str) -> Array:
    """Return [B] float64, nan if absent."""
    if found is _ABSENT or found is None:
        return np.nan
    there = np.ones(count, np.bool_) if mask is None else flags(mask, count, f"info/_{name}")
    if isinstance(found, list | tuple) and len(found) == count:
        values: Array = found
    else:
        try:
            values = found if isinstance(found, np.ndarray) else plain(found)
        except NoArray:
            values = np.zeros(0, object)
        if values.shape == (count, 1):
            values = values[:, 0]
        if values.shape not in ((count,), ()) or values.dtype.kind not in "biufO":
            got = f"{values.dtype} {list(values.shape)}" if values.size else described(found)
            raise NoNumber(
                f"metrics: expected {count} numbers in the vector env's info[{name!r}], got {got}"
            )
        if values.dtype.kind != "O":
            return np.where(there, values, np.nan)
        values = np.broadcast_to(values, count).tolist()
    return [
        _number(v, name) if yes and v is not None else np.nan
        for v, yes in zip(values, there.tolist(), strict=True)
    ]
