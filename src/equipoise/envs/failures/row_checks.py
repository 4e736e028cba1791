"""Checks of an env's rows: one cheap look a step at all of them; the row, the place and the reason
only for a wrong row.

Four things can be wrong with a value:

    invalid     no number, another shape or kind of dtype, a Discrete value that does not exist, a mask that allows no action
    nonfinite   nan or an infinity in a reward or an observation
    outside     a finite number beyond the bounds of a Box (by more than rounding)
    cast        a list, or another dtype of the same kind than the Box says: what a reset gives is looked at
"""  # noqa: E501

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from equipoise import tree
from equipoise.errors import Final
from equipoise.hints import message
from equipoise.types import Array, TimeStep, Tree

Kind = Literal["exception", "nonfinite", "invalid", "outside", "cast"]
SMALL = np.float32(1e-20)  # the largest float32 times this, summed over all rows, does not overflow
ZERO_OR_ONE = "a mask of 0 and 1"
ANSWER = "(obs, info) of reset() and (obs, reward, terminated, truncated, info) of step()"
# files that unpack an env's answer
TAKE_APART = (str(Path(__file__).parents[1]), str(Path(gymnasium.__file__).parent))
ROUNDING = 1e-5  # share of a bound that a cast from float64 and sums of cosines may add


class WrongValue(Final, RuntimeError):
    """A value that cannot be learned from; ``index``: the stream's place in the batch, if known."""

    def __init__(self, kind: Kind, index: int | None, key: str, expected: str, got: str) -> None:
        super().__init__(f"{key}: expected {expected}, got {got}")
        self.kind, self.index, self.key, self.expected, self.got = kind, index, key, expected, got
        self.where = ""

    def advised(self, advice: str) -> WrongValue:
        """The same error with a sentence on what can be done."""
        self.args = (f"{self.args[0]}; {advice}",)
        return self

    def placed(self, where: str) -> WrongValue:
        """The same error with the env and the stream in the message."""
        if not self.where:
            self.where, self.args = where, (f"{where}: {self.args[0]}",)
        return self


def invalid(index: int | None, key: str, expected: str, got: str) -> WrongValue:
    """The error of a value that is no number, or is outside its space."""
    return WrongValue("invalid", index, key, expected, got)


def of_answer(error: Exception, index: int | None) -> Exception:
    """An answer of too many values, too few or no values as a WrongValue; other errors as
    they are.
    """
    frames = traceback.extract_tb(error.__traceback__)
    ours = bool(frames) and frames[-1].filename.startswith(TAKE_APART)
    if not ours or not isinstance(error, TypeError | ValueError) or "unpack" not in message(error):
        return error
    return invalid(index, "its answer", ANSWER, str(error))


@dataclass(slots=True, kw_only=True)
class Leaf:
    """One array of the rows, with the values that it may hold."""

    key: str
    array: Array  # [B, ...]
    low: Array  # a scalar, or an array that broadcasts; finite, so that infinities are beyond it
    high: Array
    bounded: bool  # does the space bound more than the dtype?
    integers: bool
    floor: Array = None  # low and high with room for rounding: scalars, or [B, ...] like the array
    ceiling: Array = None
    scratch: Array = None

    def __post_init__(self) -> None:
        slack = 0.0 if self.integers else ROUNDING
        with np.errstate(over="ignore"):  # the dtype's own limits may overflow
            low, high = (np.asarray(x, self.array.dtype) for x in (self.low, self.high))
            floor = (
                low
                if self.integers
                else np.maximum(low - slack * np.maximum(1, np.abs(low)), np.finfo(low.dtype).min)
            )
            ceiling = (
                high
                if self.integers
                else np.minimum(high + slack * np.maximum(1, np.abs(high)), np.finfo(low.dtype).max)
            )
        self.floor, self.ceiling = uniform(floor, self.array), uniform(ceiling, self.array)
        self.scratch = np.zeros(self.array.shape, np.bool_), np.zeros(self.array.shape, np.bool_)

    def within(self) -> Array:
        """A bool array of the array's shape, the same one each time; False for nan."""
        one, other = self.scratch
        np.greater_equal(self.array, self.floor, one)
        np.less_equal(self.array, self.ceiling, other)
        return np.logical_and(one, other, one)

    def clip(self, i: int) -> None:
        """Turn nan into 0, and infinities into the largest finite value allowed."""
        self.array[i] = np.clip(np.nan_to_num(self.array[i], nan=0.0), self.low, self.high)


@dataclass(slots=True, kw_only=True)
class Mask:
    """One array of an action mask, and where in it each choice begins."""

    key: str
    array: Array  # [B, n], a view of the rows
    begins: Array  # [k]
    loose: bool = True  # does its space have other values than 0 and 1

    def stuck(self, ended: Array) -> Array:
        """[B, k] bool: a choice without an allowed value, in a row that does not end an episode."""
        return ~(np.logical_or.reduceat(self.array != 0, self.begins, axis=1) | ended[:, None])

    def odd(self, ended: Array) -> Array:
        """[B, n] bool: a value other than 0 and 1, in such a row."""
        return (
            odd(self.array) & ~ended[:, None]
            if self.loose
            else np.zeros(self.array.shape, np.bool_)
        )


def odd(mask: Array) -> Array:
    """Which values of an action mask are other than 0 and 1, such as nan, -1 and 0.5."""
    return (mask != 0) & (mask != 1)


class Checks:
    """Checks of the rows of one ``TimeStep``; ``every``: steps between two checks of bounds."""

    def __init__(
        self,
        space: spaces.Space[object],
        ts: TimeStep,
        floats: Array,
        *,
        every: int = 1,
        masks: Sequence[tuple[str, Array, Array]] = (),
    ) -> None:
        """``floats`` [n] float32: the memory that rewards and float observations are views of.
        ``masks``: (key, array [B, n], where each choice begins) of each action mask in ``ts.obs``.
        """
        self.reward = leaf("reward", ts.reward, None)
        self.observation = list(leaves(space, ts.obs))
        sure = {
            one.key
            for one in self.observation
            if one.integers and np.all(one.low >= 0) and np.all(one.high <= 1)
        }
        self.masks = [
            Mask(key=key, array=array, begins=begins, loose=key not in sure)
            for key, array, begins in masks
        ]
        self._ts = ts
        self.every, self._steps = every, 0
        self._bounded = [one for one in self.observation if one.bounded and not one.integers]
        self._integers = [one for one in self.observation if one.bounded and one.integers]
        self._more = bool(self._integers or self.masks)  # every step has more than floats to check
        self._dot, self._small = floats.dot, np.full(floats.shape, SMALL)

    def fine(self, *, begins: bool = False) -> bool:
        """Is every number finite, every integer in its space and, if it is due, every float in
        bounds?

        Bounds are checked every ``every`` steps, and with ``begins``. The sum is the cheapest way
        to find nan and infinities, since it becomes one of them.
        """
        try:
            if not isfinite(self._dot(self._small)):
                return False
        except RuntimeWarning:  # inf - inf, if warnings are errors
            return False
        self._steps += 1
        due = begins or self._steps % self.every == 0
        if not (due or self._more):
            return True
        for one in self._integers:
            if np.count_nonzero(one.within()) != one.array.size:
                return False
        if due:
            for one in self._bounded:
                if np.count_nonzero(one.within()) != one.array.size:
                    return False
        for mask in self.masks:
            ended = self._ended()
            if mask.stuck(ended).any() or (mask.loose and mask.odd(ended).any()):
                return False
        return True

    def _ended(self) -> Array:
        return np.logical_or(self._ts.terminated, self._ts.truncated)

    def wrong(self, rows: Array | None = None) -> list[WrongValue]:
        """The first wrong value of each stream and key (of ``rows``), the worst kinds first."""
        found: list[WrongValue] = []
        for one in (self.reward, *self.observation):
            array, within = (
                one.array.reshape(len(one.array), -1),
                one.within().reshape(len(one.array), -1),
            )
            for i in np.flatnonzero(~within.all(axis=1)).tolist() if rows is None else rows:
                finite = np.isfinite(array[i])
                for kind, bad, expected in (
                    ("nonfinite", ~finite, "a finite number"),
                    ("invalid" if one.integers else "outside", finite & ~within[i], bounds_of(one)),
                ):
                    if bad.any():
                        at = int(bad.argmax())
                        place = np.unravel_index(at, one.array.shape[1:])
                        where = f" at {[int(x) for x in place]}" if place else ""
                        found.append(
                            WrongValue(kind, i, one.key, expected, f"{array[i, at]}{where}")  # type: ignore[arg-type]
                        )
        for mask in self.masks:
            stuck, strange = mask.stuck(self._ended()), mask.odd(self._ended())
            for i in np.flatnonzero(strange.any(axis=1)).tolist() if rows is None else rows:
                if strange[i].any():
                    at = int(strange[i].argmax())
                    found.append(
                        invalid(i, mask.key, ZERO_OR_ONE, f"{mask.array[i, at]} at [{at}]")
                    )
            for i in np.flatnonzero(stuck.any(axis=1)).tolist() if rows is None else rows:
                if stuck[i].any():
                    which = (
                        f" for choice {int(stuck[i].argmax())} of {len(mask.begins)}"
                        if len(mask.begins) > 1
                        else ""
                    )
                    found.append(
                        invalid(i, mask.key, "at least one action allowed", f"none{which}")
                    )
        return sorted(
            found, key=lambda wrong: ("nonfinite", "invalid", "outside").index(wrong.kind)
        )

    def clamp(self, i: int) -> int:
        """Make the rows of stream ``i`` finite -> the number of values that were not."""
        count = 0
        for one in (self.reward, *self.observation):
            if not one.integers and (bad := ~np.isfinite(one.array[i])).any():
                count += int(bad.sum())
                one.clip(i)
        return count

    def fill(self, rows: Array) -> None:
        """Write the value of the space that is nearest to 0 into ``rows`` (a mask or indices)."""
        for one in self.observation:
            one.array[rows] = np.clip(np.zeros((), one.array.dtype), one.low, one.high)
        for mask in self.masks:
            mask.array[rows] = 1


def leaves(space: spaces.Space[object], obs: Tree, key: str = "obs") -> Iterator[Leaf]:
    if (inner := tree.branches(space)) is not None:
        for name, one in inner.items():
            yield from leaves(one, obs[name], f"{key}/{name}")
    else:
        yield leaf(key, obs, space)


def leaf(key: str, array: Array, space: spaces.Space[object] | None) -> Leaf:
    integers = not np.issubdtype(array.dtype, np.floating)
    if array.dtype == np.bool_:
        return Leaf(key=key, array=array, low=False, high=True, bounded=False, integers=True)
    least, most = (
        (np.iinfo if integers else np.finfo)(array.dtype).min,
        (np.iinfo if integers else np.finfo)(array.dtype).max,
    )
    if isinstance(space, spaces.Discrete):
        low: Array = int(space.start)
        return Leaf(
            key=key, array=array, low=low, high=low + int(space.n) - 1, bounded=True, integers=True
        )
    if isinstance(space, spaces.MultiDiscrete):
        return Leaf(
            key=key,
            array=array,
            low=space.start,
            high=space.start + (space.nvec - 1),
            bounded=True,
            integers=True,
        )
    if isinstance(space, spaces.MultiBinary):
        return Leaf(key=key, array=array, low=0, high=1, bounded=True, integers=True)
    if not isinstance(space, spaces.Box):
        return Leaf(key=key, array=array, low=least, high=most, bounded=False, integers=integers)
    low, high = (
        np.maximum(space.low, least).astype(array.dtype),
        np.minimum(space.high, most).astype(array.dtype),
    )
    return Leaf(
        key=key,
        array=array,
        low=low,
        high=high,
        bounded=bool((low > least).any() or (high < most).any()),
        integers=integers,
    )


def uniform(bound: Array, array: Array) -> Array:
    """A scalar if all bounds are equal, else one bound a value: faster than a broadcast."""
    bound = np.asarray(bound, array.dtype)
    if not bound.size:
        return bound.dtype.type(0)
    if (bound == bound.flat[0]).all():
        return bound.flat[0]
    return np.ascontiguousarray(np.broadcast_to(bound, array.shape))


def bounds_of(one: Leaf) -> str:
    return (
        "no values"
        if not np.size(one.low)
        else f"values from {np.min(one.low)} to {np.max(one.high)}"
    )
