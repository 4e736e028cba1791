"""Final observations of a SAME_STEP env: ``info`` holds them or nothing does, since the row shows the next episode's first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from equipoise.envs.failures.row_checks import WrongValue
from equipoise.envs.spaces import member
from equipoise.types import Array, Tree

KEYS = ("final_obs", "final_observation")  # Gymnasium's names since 1.0, and before
TRUNCATION = "truncation treated as termination"
UNKNOWN = f"{TRUNCATION}, where the env gives no info['final_obs']"  # until the first truncation tells


def note(env: VectorEnv[Any, Any, Any]) -> tuple[str, ...]:
    """The note on a SAME_STEP env before its first truncation."""
    return () if isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv) else (UNKNOWN,)


def read(target: Tree, info: Mapping[str, Any], rows: Array) -> Array:
    """Copy the last observations of ``rows`` [B] bool from ``info`` into ``target`` [B, ...] -> [B] bool, which were there.

    Gymnasium gives an array of objects, each one env's observation or None. Others may give observations [B, ...] in
    the form that ``step`` returns. ``_final_obs`` [B] bool, where it is there, says which rows mean anything.
    WrongValue where one is not of the observation's shape.
    """
    there = given(info, rows)
    if (key := named(info)) is None:
        return there
    value = info[key]
    if not isinstance(value, np.ndarray) or value.dtype != object:
        _put_rows(target, value, there, key)
        return there
    for i in np.flatnonzero(there).tolist():
        _put_one(target, value[i], i, key)
    return there


def given(info: Any, rows: Array) -> Array:
    """[B] bool: the rows among ``rows`` [B] bool whose last observation is in ``info``."""
    if (key := named(info)) is None:
        return np.zeros_like(rows)
    value, there = info[key], np.array(rows)
    if (said := info.get(f"_{key}")) is not None:
        there &= np.asarray(said, np.bool_)
    if isinstance(value, np.ndarray) and value.dtype == object:
        there &= np.array([one is not None for one in value])
    return there


def named(info: Any) -> str | None:
    """Return the key of ``info`` that holds them."""
    return next((key for key in KEYS if isinstance(info, Mapping) and info.get(key) is not None), None)


def _put_one(target: Tree, obs: Any, i: int, key: str) -> None:
    if isinstance(target, dict):
        for name, inner in target.items():
            _put_one(inner, member(obs, name), i, f"{key}/{name}")
    elif np.shape(obs) != target.shape[1:]:
        raise WrongValue("invalid", i, f"info/{key}", f"shape {list(target.shape[1:])}", f"{list(np.shape(obs))}")
    else:
        np.copyto(target[i : i + 1], np.asarray(obs)[None])


def _put_rows(target: Tree, obs: Any, rows: Array, key: str) -> None:
    if isinstance(target, dict):
        for name, inner in target.items():
            _put_rows(inner, member(obs, name), rows, f"{key}/{name}")
    elif np.shape(obs) != target.shape:  # it might broadcast
        raise WrongValue("invalid", 0, f"info/{key}", f"shape {list(target.shape)}", f"{list(np.shape(obs))}")
    else:
        np.copyto(target, obs, where=rows.reshape(-1, *[1] * (target.ndim - 1)))
