"""Final observations of a SAME_STEP env: ``info`` holds them or nothing does, since the row shows
the next episode's first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from equipoise import tree
from equipoise.envs.failures.row_checks import invalid
from equipoise.envs.values import NoArray, described, flags, plain, taken
from equipoise.tree import ArraySpec
from equipoise.types import Array, Tree

KEYS = ("final_obs", "final_observation")  # Gymnasium's names since 1.0, and before
TRUNCATION = "truncation treated as termination"
# until the first truncation shows it
UNKNOWN = f"{TRUNCATION}, since the env gives no info['final_obs']"


def note(env: VectorEnv) -> tuple[str, ...]:
    """The note on a SAME_STEP env before its first truncation."""
    return () if isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv) else (UNKNOWN,)


def read(target: Tree, info: Tree, rows: Array) -> Array:
    """Copy last observations of ``rows`` [B] bool from ``info`` into ``target`` -> [B] bool, those
    found.

    Taken are Gymnasium's array of objects, a list of observations, and observations [B, ...] as
    ``step`` returns them; ``_final_obs`` [B] bool marks the observations that count. WrongValue for
    another shape or count.
    """
    there = given(info, rows)
    if (key := named(info)) is None:
        return there
    one = tree.map(lambda x: ArraySpec(x.shape[1:], str(x.dtype)), target)
    for i in np.flatnonzero(there).tolist():
        row = taken(one, _row(info[key], i, len(rows), one, f"info/{key}"), i, f"info/{key}")
        tree.map(lambda x, of, i=i: np.copyto(x[i : i + 1], of[None]), target, row)
    return there


def given(info: Tree, rows: Array) -> Array:
    """[B] bool: the rows among ``rows`` [B] bool whose last observation is in ``info``."""
    if (key := named(info)) is None:
        return np.zeros_like(rows)
    value, there = info[key], np.array(rows)
    if (said := info.get(f"_{key}")) is not None:
        there &= flags(said, len(rows), f"info/_{key}")
    if by_env(value) and len(value) == len(rows):
        there &= np.array([one is not None for one in value])
    return there


def by_env(value: object) -> bool:
    """Is it one value for each env, any of which may be None?"""
    return isinstance(value, list) or (
        isinstance(value, np.ndarray) and value.dtype == object and value.ndim == 1
    )


def _row(value: Any, i: int, count: int, spec: Tree, key: str) -> Tree:
    """One env's part of a batch: of objects, or of arrays [B, ...] in the form of the space."""
    if isinstance(spec, dict) and isinstance(value, Mapping):
        return {
            name: _row(inner, i, count, spec.get(name), f"{key}/{name}")
            for name, inner in value.items()
        }
    if isinstance(spec, dict) and isinstance(value, tuple) and len(value) == len(spec):
        return tuple(
            _row(inner, i, count, spec[str(n)], f"{key}/{n}") for n, inner in enumerate(value)
        )
    try:
        rows = value if by_env(value) or isinstance(value, tuple) else plain(value)
    except NoArray as error:
        got = f"{described(value)}{error}"
        raise invalid(i, key, f"the last observation of each of {count} envs", got) from None
    if isinstance(rows, np.ndarray) and not rows.ndim:
        raise invalid(i, key, f"the last observation of each of {count} envs", described(value))
    if len(rows) != count:
        raise invalid(i, key, f"one for each of {count} envs", f"{len(rows)}")
    return rows[i]


def named(info: Tree) -> str | None:
    """Return the key of ``info`` that holds them."""
    return next(
        (key for key in KEYS if isinstance(info, Mapping) and info.get(key) is not None), None
    )
