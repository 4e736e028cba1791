"""Spaces as trees of ``ArraySpec``, the preallocated arrays that a worker's envs write into, and
actions as the env wants them.

The arrays that reach a network: a ``Box`` of any float as float32, all else in the dtype of its
space; ``Dict`` and ``Tuple`` as dicts, a Tuple's keys being "0", "1", .... The arrays that a policy
gives: int64 from ``start`` (``Discrete``, ``MultiDiscrete``), int8 (``MultiBinary``), float32
(``Box``), in dicts of the same keys; ``ActionForm`` turns them into the argument of ``env.step``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from equipoise import tree
from equipoise.envs.hints import UnsupportedSpace
from equipoise.tree import ArraySpec
from equipoise.types import Array, TimeStep, Tree

OBSERVATIONS = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"
ACTIONS = "Box (float), Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"
INSTEAD: dict[type, str] = {  # advice for spaces that have no arrays of a fixed size
    spaces.Text: "make it a Box of bytes of a fixed length, padded",
    spaces.Sequence: "pad it to a Box of a fixed length, with another Box that marks the "
    "elements that are there",
    spaces.Graph: "pad nodes and edges to a Dict of Boxes of a fixed size",
    spaces.OneOf: "make it a Dict of a Discrete that chooses and of all the choices",
    spaces.Box: "make it a MultiDiscrete",
}


def observation_spec(space: spaces.Space[object], place: str = "obs") -> Tree:
    """The arrays of one stream's observation; UnsupportedSpace names the place of a space without
    arrays.

    Some arrays may be empty, but not all.
    """
    found = part_spec(space, place)
    if not any(math.prod(one.shape) for one in tree.leaves(found)):
        raise UnsupportedSpace(
            f"observation space {space} is not supported: expected at least one number, got none"
        )
    return found


def part_spec(space: object, place: str = "obs") -> Tree:
    """``observation_spec`` of a part of a space, which may be without elements."""
    if isinstance(space, spaces.Box):
        _bounded(space, "observation", place)
        return ArraySpec(
            tuple(space.shape),
            "float32" if np.issubdtype(space.dtype, np.floating) else str(space.dtype),
        )
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        _choices(space, "observation", place)
        return ArraySpec(tuple(space.shape or ()), str(space.dtype))
    if (inner := tree.branches(space)) is not None:
        return {
            key: part_spec(one, f"{place}/{key}")
            for key, one in _named(inner, "observation", space, place)
        }
    raise _unsupported("observation", space, place, OBSERVATIONS, "gymnasium.ObservationWrapper")


def action_spec(space: spaces.Space[object], place: str = "action") -> Tree:
    """The arrays of one stream's action of a policy; UnsupportedSpace names the place."""
    _choices(space, "action", place)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        _bounded(space, "action", place)
        return ArraySpec(tuple(space.shape), "float32")
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return ArraySpec(tuple(space.shape or ()), "int64")
    if isinstance(space, spaces.MultiBinary):
        return ArraySpec(tuple(space.shape), "int8")
    if (inner := tree.branches(space)) is not None:
        return {
            key: action_spec(one, f"{place}/{key}")
            for key, one in _named(inner, "action", space, place)
        }
    raise _unsupported("action", space, place, ACTIONS, "gymnasium.ActionWrapper")


def _bounded(space: spaces.Box, role: str, place: str) -> None:
    """Raise UnsupportedSpace if a bound is nan: such a space is not even equal to itself."""
    if np.isnan(space.low).any() or np.isnan(space.high).any():
        raise UnsupportedSpace(
            f"{role} space {space} at {place} is not supported: expected bounds that are numbers, "
            "got nan"
        )


def _choices(space: object, role: str, place: str) -> None:
    """Raise UnsupportedSpace if there is nothing to choose."""
    if isinstance(space, spaces.Space) and 0 in (space.shape or ()):
        raise UnsupportedSpace(
            f"{role} space {space} at {place} is not supported: expected at least one number, got "
            "none"
        )


def _named(
    inner: Mapping[Any, spaces.Space[object]], role: str, space: object, place: str
) -> Iterable[tuple[str, spaces.Space[object]]]:
    # Keys are names in files and graphs: no zero byte, no half of a character.
    wrong = [
        key for key in inner if not isinstance(key, str) or re.search("[\0\ud800-\udfff]", key)
    ]
    if wrong or not inner:
        expected = (
            f"texts of whole characters as keys, got {wrong}"
            if wrong
            else "at least one part, got none"
        )
        raise UnsupportedSpace(
            f"{role} space {space} at {place} is not supported: expected {expected}"
        )
    return inner.items()


def _unsupported(
    role: str, space: object, place: str, supported: str, wrapper: str
) -> UnsupportedSpace:
    instead = next(
        (words for kind, words in INSTEAD.items() if isinstance(space, kind)),
        "turn it into one of those",
    )
    where = f" at {place}" if "/" in place else ""
    return UnsupportedSpace(
        f"{role} space {space}{where} is not supported; supported: {supported}. A {wrapper} around "
        f"the env can {instead}"
    )


def differ(
    place: str, mine: spaces.Space[object], other: spaces.Space[object]
) -> tuple[str, object, object] | None:
    """The first difference of two spaces' rows: (place, the other space, this space).

    Bounds matter in actions only, since networks scale by them.
    """
    parts, others = tree.branches(mine), tree.branches(other)
    if parts is not None and others is not None and parts.keys() == others.keys():
        pairs = (differ(f"{place}/{key}", parts[key], others[key]) for key in parts)
        return next((pair for pair in pairs if pair is not None), None)
    if isinstance(mine, spaces.Box) and isinstance(other, spaces.Box):
        seen = place.startswith("observation")
        same = part_spec(mine, place) == part_spec(other, place) if seen else mine == other
        return None if same else (place, other, mine)
    return None if mine == other else (place, other, mine)


def member(value: Tree, key: str) -> Tree:
    """Return the member of an env's dict or tuple at a key of the tree."""
    return value[key] if isinstance(value, Mapping) else value[int(key)]


def timestep(observation: Tree, streams: Array) -> tuple[TimeStep, Array]:
    """Make zeroed rows for B streams, and the [n] float32 behind all of their floats.

    One array, so that one check sees whether all of them are finite.
    """
    count, at = len(streams), 0
    specs = {"obs": tree.prepend(observation, count), "reward": ArraySpec((count,), "float32")}
    floats = np.zeros(
        sum(s.nbytes for s in tree.leaves(specs) if s.dtype == "float32") // 4, np.float32
    )

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
    """From a policy's actions to the env's: its dtypes, clipped to a Box, its dicts and tuples.

    ``form(action)`` is a tree of arrays [B, ...]; ``each`` and ``together`` make of it the actions
    of B envs, and of a vector env.
    """

    def __init__(self, space: spaces.Space[object], batch: int, place: str = "action") -> None:
        action_spec(space, place)  # raises for an unsupported space
        self.place, self.batch = place, batch
        self.tuple = isinstance(space, spaces.Tuple)
        self.low: Array = None
        self.high: Array = None
        self.inner: dict[str, ActionForm] | None = None
        if (inner := tree.branches(space)) is not None:
            self.inner = {
                key: ActionForm(one, batch, f"{place}/{key}") for key, one in inner.items()
            }
            return
        if isinstance(space, spaces.Box):
            self.low, self.high = space.low, space.high
        self.shape = (batch, *(space.shape or ()))
        self.dtype = np.dtype(space.dtype)
        # an array without axes, not a number
        self._scalar = not isinstance(space, spaces.Discrete) and not space.shape

    def zeros(self) -> Tree:
        """Return zero actions [B, ...]."""
        if self.inner is not None:
            return {key: form.zeros() for key, form in self.inner.items()}
        return np.zeros(self.shape, self.dtype)

    def __call__(self, action: Tree) -> Tree:
        """Convert actions [B, ...] into new arrays, which an env may keep."""
        if self.inner is not None:
            if not isinstance(action, Mapping) or action.keys() != self.inner.keys():
                got = (
                    f"the keys {sorted(map(str, action))}"
                    if isinstance(action, Mapping)
                    else type(action).__name__
                )
                raise ValueError(
                    f"{self.place}: expected a dict with the keys {sorted(self.inner)}, got {got}"
                )
            return {key: form(action[key]) for key, form in self.inner.items()}
        if (
            self.low is None
            and isinstance(action, np.ndarray)
            and action.dtype == self.dtype
            and action.shape == self.shape
        ):
            return np.array(action)
        if np.shape(action) != self.shape:
            raise ValueError(
                f"{self.place}: expected actions of shape {self.shape}, got {np.shape(action)}"
            )
        form = np.empty(self.shape, self.dtype)
        if self.low is not None:
            np.maximum(action, self.low, out=form, casting="same_kind")
            np.minimum(form, self.high, out=form)
        # numpy counts unsigned and signed as different kinds
        elif self.dtype.kind == "u" and np.asarray(action).dtype.kind == "i":
            np.copyto(form, action, casting="unsafe")
        else:
            np.copyto(form, action, casting="same_kind")
        return form

    def each(self, actions: Tree) -> Iterable[Tree]:
        """Yield the rows of arrays [n, ...], as one env takes them."""
        if self.inner is None:
            return actions if not self._scalar else [actions[i, ...] for i in range(len(actions))]
        rows = zip(*(form.each(actions[key]) for key, form in self.inner.items()))
        return rows if self.tuple else (dict(zip(self.inner, row)) for row in rows)

    def together(self, actions: Tree) -> Tree:
        """Return all rows as a vector env takes them."""
        if self.inner is None:
            return actions
        rows = {key: form.together(actions[key]) for key, form in self.inner.items()}
        return tuple(rows.values()) if self.tuple else rows

    def one(self, actions: Tree) -> Tree:
        """Return the first row, as one env takes it."""
        return next(iter(self.each(actions)))
