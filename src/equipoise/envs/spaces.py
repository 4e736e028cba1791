"""Spaces as trees of ``ArraySpec``, and the preallocated arrays that a worker's envs write into.

What reaches a network: ``Box`` of any float -> float32, ``Box`` of integers or bytes -> the same dtype, ``Discrete`` ->
int64, ``Dict`` -> a dict of these. Actions are in the env's own terms: float32 (``Box``), int64 from ``start`` (``Discrete``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from equipoise import tree
from equipoise.envs.wrong import UnsupportedSpace
from equipoise.tree import ArraySpec
from equipoise.types import Array, TimeStep, Tree

OBSERVATIONS = "Box, Discrete, and Dict of these"
ACTIONS = "Box (float) and Discrete"


def observation_spec(space: spaces.Space[Any]) -> Tree:
    """The arrays of one stream's observation; UnsupportedSpace for what is not supported yet."""
    if isinstance(space, spaces.Box):
        return ArraySpec(tuple(space.shape), "float32" if np.issubdtype(space.dtype, np.floating) else str(space.dtype))
    if isinstance(space, spaces.Discrete):
        return ArraySpec((), "int64")
    if isinstance(space, spaces.Dict) and space.spaces and all(isinstance(key, str) for key in space.spaces):
        return {key: observation_spec(inner) for key, inner in space.spaces.items()}
    raise UnsupportedSpace(f"observation space {space} is not supported; supported: {OBSERVATIONS}")


def action_spec(space: spaces.Space[Any]) -> ArraySpec:
    """The array of one stream's action; UnsupportedSpace for what is not supported yet."""
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return ArraySpec(tuple(space.shape), "float32")
    if isinstance(space, spaces.Discrete):
        return ArraySpec((), "int64")
    raise UnsupportedSpace(f"action space {space} is not supported; supported: {ACTIONS}")


def timestep(observation: Tree, streams: Array) -> tuple[TimeStep, Array]:
    """Zeroed rows for B streams (``observation`` is the spec of one), and [n] float32 that all floats among them are views of.

    One array, so that one look at it sees whether all of them are finite.
    """
    count, at = len(streams), 0
    specs = {"obs": tree.prepend(observation, count), "reward": ArraySpec((count,), "float32")}
    floats = np.zeros(sum(s.nbytes for s in tree.leaves(specs) if s.dtype == "float32") // 4, np.float32)

    def array(s: ArraySpec) -> Array:
        nonlocal at
        if s.dtype != "float32":
            return np.zeros(s.shape, s.dtype)
        at += s.nbytes // 4
        return floats[at - s.nbytes // 4 : at].reshape(s.shape)

    rows = tree.map(array, specs)
    step = TimeStep(
        obs=rows["obs"],
        reward=rows["reward"],
        terminated=np.zeros(count, np.bool_),
        truncated=np.zeros(count, np.bool_),
        first=np.zeros(count, np.bool_),
        valid=np.zeros(count, np.bool_),
        stream=np.array(streams, np.int64),
    )
    return step, floats


class ActionForm:
    """What the env is given: clipped to a Box, in the env's dtype."""

    def __init__(self, space: spaces.Space[Any], batch: int) -> None:
        action_spec(space)  # refuses what is not supported
        self.low: Any = None
        self.high: Any = None
        if isinstance(space, spaces.Box):
            self.low, self.high = space.low, space.high
        self.shape = (batch, *(space.shape or ()))
        self.dtype = np.dtype(space.dtype)

    def __call__(self, action: Any) -> np.ndarray[Any, np.dtype[Any]]:
        """[B, ...], a new array each time: an env may keep it, and the caller may overwrite its own."""
        if self.low is None and getattr(action, "dtype", None) == self.dtype and action.shape == self.shape:
            return np.array(action)
        if np.shape(action) != self.shape:
            raise ValueError(f"expected actions of shape {self.shape}, got {np.shape(action)}")
        form = np.empty(self.shape, self.dtype)
        if self.low is not None:
            np.maximum(action, self.low, out=form, casting="same_kind")
            np.minimum(form, self.high, out=form)
        else:
            np.copyto(form, action, casting="same_kind")
        return form
