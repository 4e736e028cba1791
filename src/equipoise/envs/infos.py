"""Numbers from an env's ``info``, by name, as one array a step: what ``Program.source.metrics`` asks for.

A name is a key of ``info``, or a path of keys ("episode/r"); a key that has a slash itself is found, too. A name that is
absent (or None) in a step gives nan. Nothing of an ``info`` dict is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

_ABSENT: Any = object()


class NoNumber(ValueError):
    """The error of a metric name whose value is no number."""


class Infos:
    """The last step's numbers: ``value`` [B, M] float64 for B streams and the M ``names``."""

    def __init__(self, names: Sequence[str], streams: int) -> None:
        self.names = tuple(names)
        self.value = np.full((streams, len(self.names)), np.nan)
        self.seen: set[str] | None = None  # every name that appeared; None: not collected

    def read_one(self, i: int, info: Mapping[str, Any]) -> None:
        """Read the row of stream ``i`` from its own ``info``; NoNumber where a value is no number."""
        if self.seen is not None:
            self.seen.update(paths(info))
        for j, name in enumerate(self.names):
            found = info.get(name, _ABSENT)
            if found is _ABSENT and "/" in name:
                found = _find(info, name)
            self.value[i, j] = np.nan if found is _ABSENT or found is None else _number(found, name)

    def read_all(self, info: Mapping[str, Any], rows: Any = None) -> None:
        """Read all rows, or those where ``rows`` [B] bool, from a vector env's ``info``: arrays [B], with ``_key`` as masks."""
        if self.seen is not None:
            self.seen.update(paths(info))
        for j, name in enumerate(self.names):
            found, mask = _column(info, name)
            column = _numbers(found, mask, len(self.value), name)
            np.copyto(self.value[:, j], column, where=True if rows is None else rows)


def paths(info: Mapping[Any, Any], before: str = "") -> Iterator[str]:
    """Return the names of an ``info``, nested ones as paths, without the masks of vector envs."""
    for key, value in info.items():
        if not isinstance(key, str) or (key[:1] == "_" and key[1:] in info):
            continue
        if isinstance(value, Mapping):
            yield from paths(value, f"{before}{key}/")
        else:
            yield f"{before}{key}"


def _find(info: Mapping[str, Any], name: str) -> Any:
    if name in info:
        return info[name]
    head, _, rest = name.partition("/")
    inner = info.get(head) if rest else None
    return _find(inner, rest) if isinstance(inner, Mapping) else _ABSENT


def _column(info: Mapping[str, Any], name: str) -> tuple[Any, Any]:
    """Return the array behind a name and the mask of its valid rows (None: all); absent: (``_ABSENT``, None)."""
    if name in info:
        return info[name], info.get(f"_{name}")
    head, _, rest = name.partition("/")
    inner = info.get(head) if rest else None
    if not isinstance(inner, Mapping):
        return _ABSENT, None
    found, mask = _column(inner, rest)
    outer = info.get(f"_{head}")
    return found, mask if outer is None else outer if mask is None else np.logical_and(mask, outer)


def _number(value: Any, name: str) -> float:
    if isinstance(value, float | int | np.floating | np.integer | np.bool_):  # bool is an int
        return float(value)
    if hasattr(value, "item") and np.size(value) == 1:
        return _number(value.item(), name)
    shape = f" of shape {list(np.shape(value))}" if hasattr(value, "shape") else ""
    raise NoNumber(f"metrics: expected a number in the env's info[{name!r}], got {type(value).__name__}{shape}")


def _numbers(found: Any, mask: Any, count: int, name: str) -> Any:
    """Return [B] float64, nan where absent."""
    if found is _ABSENT or found is None:
        return np.nan
    array = np.asarray(found)
    if array.shape == (count, 1):
        array = array[:, 0]
    if array.shape not in ((count,), ()) or array.dtype.kind not in "biufO":
        got = f"{array.dtype} {list(array.shape)}"
        raise NoNumber(f"metrics: expected {count} numbers in the vector env's info[{name!r}], got {got}")
    if array.dtype.kind == "O":
        there = np.broadcast_to(True if mask is None else mask, count).tolist()
        values = np.broadcast_to(array, count).tolist()
        return [_number(v, name) if yes and v is not None else np.nan for v, yes in zip(values, there)]
    return array if mask is None else np.where(mask, array, np.nan)
