"""Findings: the faults of an env's answers (form, values against spaces), each reported once.

A place is "obs" or "obs/key", "reward", "terminated", "truncated". ``lead`` is the shape in front
of one stream's: () for an env of one stream, (B,) for a vector env.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from gymnasium import spaces

from equipoise import tree
from equipoise.envs.failures.row_checks import WrongValue
from equipoise.envs.scales import ADVICE, large, large_seen
from equipoise.envs.spaces import part_spec
from equipoise.envs.values import (
    FLAG,
    NUMBER,
    NoArray,
    described,
    flag,
    flags,
    number,
    numbers,
    plain,
)
from equipoise.types import Array, Tree

Severity = Literal["error", "note"]
Flat = dict[str, Array]  # place -> what stands there

STOPS = "In training it costs that episode, and a capsule records it; a vector env ends the run."
POISON = (
    "It would reach the loss and from there every weight: a run stops at it, or drops or "
    "clamps it (--on-nonfinite)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding. error: training or a resume goes wrong; note: it works and costs something."""

    severity: Severity
    what: str  # names the place
    where: str  # the first call that showed it
    seen: str  # expected ..., got ...
    cost: str
    times: int = 1


class Broken(Exception):
    """Raised if the env cannot be stepped any further; the reason is among the findings."""


class Findings:
    """The findings in order. The same ``what`` again is counted, or ignored once ``closed``."""

    def __init__(self) -> None:
        self._found: dict[str, Finding] = {}
        self.closed = False
        self.on_new: Callable[[], None] = lambda: None

    def add(self, severity: Severity, what: str, where: str, seen: str, cost: str) -> None:
        if (old := self._found.get(what)) is not None:
            if self.closed:
                return
            self._found[what] = dataclasses.replace(old, times=old.times + 1)
        else:
            self._found[what] = Finding(
                severity=severity, what=what, where=where, seen=seen, cost=cost
            )
            self.on_new()

    def error(self, what: str, where: str, seen: str, cost: str) -> None:
        self.add("error", what, where, seen, cost)

    def note(self, what: str, where: str, seen: str, cost: str) -> None:
        self.add("note", what, where, seen, cost)

    def all(self) -> tuple[Finding, ...]:
        """Return all findings, errors first."""
        return tuple(sorted(self._found.values(), key=lambda f: f.severity))


# --------------------------------------------------------------------------------------- the spaces


def bounds(space: spaces.Space[object]) -> tuple[Array, Array]:
    """The least and the largest values of an array's space."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + (space.n - 1)
    assert isinstance(space, spaces.MultiDiscrete)
    return space.start, space.start + (space.nvec - 1)


def judge_spaces(
    found: Findings, observation: spaces.Space[object], action: spaces.Space[object], part: str = ""
) -> None:
    """Judge bounds and dtypes. ``part``: "/agents/NAME" if the spaces are one agent's."""
    for place, space in tree.items(tree.parts(observation), f"obs{part}"):
        if isinstance(space, spaces.Box):
            _judge_bounds(found, place, space)
            if (
                len(space.shape) == 3
                and space.dtype.kind == "f"
                and space.high.size
                and space.high.max() == 255
            ):
                seen = f"expected uint8 for an image of 0 to 255, got {space.dtype}"
                found.note(
                    f"{place} is an image of floats",
                    "observation_space",
                    seen,
                    "Four times the memory and traffic.",
                )
    for place, most in large(observation, f"obs{part}").items():
        note_scale(found, place, "observation_space", most)
    for place, space in tree.items(tree.parts(action), f"action{part}"):
        if isinstance(space, spaces.Box):
            _judge_bounds(found, place, space)
            if not space.is_bounded():
                seen = f"expected finite bounds, got {space}"
                cost = (
                    "Nothing clips the policy's noise: the env gets every extreme that a normal "
                    "distribution draws."
                )
                found.note(f"the {place} has no bounds", "action_space", seen, cost)
        elif isinstance(space, spaces.Discrete) and space.n == 1:
            seen = "expected at least 2, got 1"
            found.note(
                f"there is only one {place}", "action_space", seen, "There is nothing to learn."
            )


def note_scale(found: Findings, place: str, where: str, most: float) -> None:
    cost = (
        "A network begins with weights for numbers of about 1, and these hide all others. To "
        f"mend it: {ADVICE}."
    )
    found.note(
        f"{place} has large numbers",
        where,
        f"expected numbers of about 1, got up to {most:,.6g}",
        cost,
    )


def _judge_bounds(found: Findings, place: str, space: spaces.Box) -> None:
    name = "action_space" if place.partition("/")[0] == "action" else "observation_space"
    for wrong, said in ((space.low > space.high, "above"), (space.low == space.high, "equal to")):
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0].tolist())
            seen = (
                f"expected low < high, got low {space.low[at]} and high {space.high[at]} at "
                f"{list(at)}"
            )
            if said == "above":
                found.error(
                    f"{place} has a low {said} its high",
                    name,
                    seen,
                    "No value lies inside; clipping makes nonsense.",
                )
            else:
                found.note(
                    f"{place} has a low {said} its high",
                    name,
                    seen,
                    "A number that never varies carries nothing.",
                )


# --------------------------------------------------------------------------------------- the values


def flatten(
    found: Findings, space: spaces.Space[object], obs: object, where: str, place: str = "obs"
) -> Flat:
    """Return {place: value} as the env gave it; Broken if a key of the space is missing."""
    if isinstance(space, spaces.Tuple):
        if not isinstance(obs, tuple | list) or len(obs) != len(space.spaces):
            got = f"{len(obs)}" if isinstance(obs, tuple | list) else type(obs).__name__
            found.error(
                f"{place} is no tuple",
                where,
                f"expected a tuple of {len(space.spaces)}, got {got}",
                STOPS,
            )
            raise Broken
        parts = (
            flatten(found, inner, obs[i], where, f"{place}/{i}")
            for i, inner in enumerate(space.spaces)
        )
        return {key: value for part in parts for key, value in part.items()}
    if not isinstance(space, spaces.Dict):
        return {place: obs}
    if not isinstance(obs, Mapping):
        found.error(
            f"{place} is no dict",
            where,
            f"expected keys {sorted(space)}, got {type(obs).__name__}",
            STOPS,
        )
        raise Broken
    flat: Flat = {}
    for key, inner in space.spaces.items():
        if key not in obs:
            seen = f"expected keys {sorted(space)}, got {sorted(map(str, obs))}"
            found.error(f"{place}/{tree.path_of(key)} is missing", where, seen, STOPS)
            raise Broken
        flat |= flatten(found, inner, obs[key], where, f"{place}/{tree.path_of(key)}")
    for key in sorted(obs.keys() - space.spaces.keys(), key=str):
        seen = f"expected keys {sorted(space)}, got {sorted(obs, key=str)}"
        found.note(
            f"{place}/{key} is not in the space", where, seen, "It never reaches the policy."
        )
    return flat


def judge_row(
    found: Findings,
    spaces_of: dict[str, spaces.Space[object]],
    obs: Flat,
    answer: Tree,
    lead: tuple[int, ...],
) -> None:
    """Judge the ``Answer`` of one call; ``obs`` is its flat observation."""
    for place, space in spaces_of.items():
        judge_observation(found, space, place, obs[place], lead, answer.where)
    if not answer.reset:
        judge_reward(found, answer.reward, lead, answer.where)
        judge_flag(found, "terminated", answer.terminated, lead, answer.where)
        judge_flag(found, "truncated", answer.truncated, lead, answer.where)
    judge_info(found, answer.info, answer.terminated, answer.where)


def judge_observation(
    found: Findings,
    space: spaces.Space[object],
    place: str,
    value: Array,
    lead: tuple[int, ...],
    where: str,
) -> None:
    """Judge one leaf of an observation by its space."""
    try:
        array = plain(value)
    except NoArray as error:
        found.error(
            f"{place} is no array",
            where,
            f"expected an array, got {described(value)}{error}",
            STOPS,
        )
        return
    target = np.dtype(part_spec(space).dtype)
    expected = (*lead, *(space.shape or ()))
    if isinstance(space, spaces.Box) and not isinstance(value, np.ndarray) and expected:
        seen = f"expected a numpy array, got {type(value).__name__}"
        found.note(f"{place} is no numpy array", where, seen, "A conversion at every step.")
    if array.shape != expected:
        cost = (
            "In training it costs that episode or, where numpy can broadcast it, repeated "
            "numbers are learned from."
        )
        found.error(
            f"{place} has the wrong shape", where, f"expected {expected}, got {array.shape}", cost
        )
        return
    if not np.can_cast(array.dtype, target, "same_kind"):
        found.error(
            f"{place} has the wrong dtype",
            where,
            f"expected {space.dtype}, got {array.dtype}",
            STOPS,
        )
        return
    if (
        isinstance(space, spaces.Box)
        and isinstance(value, np.ndarray)
        and array.dtype != space.dtype
    ):
        cost = (
            f"It is cast to {target} at every step, and what {target} cannot hold is lost silently."
        )
        found.note(
            f"{place} has another dtype than its space",
            where,
            f"expected {space.dtype}, got {array.dtype}",
            cost,
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        at, got = _first(~np.isfinite(array), array)
        # +-inf inside an unbounded Box is a member of the space; the loss does not care.
        found.error(
            f"{place} is not finite", where, f"expected finite numbers, got {got}{at}", POISON
        )
        return
    for seen_at, most in large_seen(space, array, place).items():
        note_scale(found, seen_at, where, most)
    least, most = bounds(space)
    outside = (array < least) | (array > most)
    if outside.any():
        at, got = _first(outside, array)
        low, high = (np.broadcast_to(b, array.shape)[outside][0] for b in (least, most))
        cost = (
            "Equipoise does not clip or scale by these bounds, but wrappers do: their results "
            "are wrong."
            if isinstance(space, spaces.Box)
            else "A value outside is encoded as zeros: the policy cannot distinguish such states."
        )
        found.error(
            f"{place} leaves its space",
            where,
            f"expected within [{low}, {high}], got {got}{at}",
            cost,
        )


def judged(found: Findings, place: str, value: Array, lead: tuple[int, ...], where: str) -> Array:
    """A reward or a flag as training takes it, [*lead]; a finding and None if it does not."""
    expected = NUMBER if place == "reward" else FLAG
    try:
        if place == "reward":
            return np.asarray(numbers(value, lead[0], place) if lead else number(value, 0, place))
        return flags(value, lead[0], place) if lead else np.asarray(flag(value, 0, place))
    except WrongValue as wrong:
        try:
            shape = plain(value).shape
        except NoArray:
            shape = lead
        if shape != lead:
            found.error(
                f"{place} has the wrong shape",
                where,
                f"expected {lead or 'a scalar'}, got {shape}",
                STOPS,
            )
        else:
            # not "is no bool": that name is the note on 0 and 1
            kind = "no number" if expected is NUMBER else "neither True nor False"
            found.error(
                f"{place} is {kind}", where, f"expected {wrong.expected}, got {wrong.got}", STOPS
            )
        return None


def judge_reward(found: Findings, value: Array, lead: tuple[int, ...], where: str) -> None:
    array = judged(found, "reward", value, lead, where)
    if array is None:
        return
    with np.errstate(over="ignore"):
        finite = np.isfinite(array.astype(np.float32))  # as training holds it
    if not finite.all():
        at, got = _first(~finite, array)
        found.error(
            "reward is not finite", where, f"expected a finite number, got {got}{at}", POISON
        )


def judge_flag(
    found: Findings, place: str, value: Array, lead: tuple[int, ...], where: str
) -> None:
    if judged(found, place, value, lead, where) is not None and plain(value).dtype.kind != "b":
        said = described(value) if not lead else f"dtype {plain(value).dtype}"
        found.note(
            f"{place} is no bool",
            where,
            f"expected True or False, got {said}",
            "It is read as its truth value.",
        )


def judge_info(found: Findings, info: Tree, terminated: Array, where: str) -> None:
    if not isinstance(info, Mapping):
        seen = f"expected a dict, got {type(info).__name__}"
        found.note(
            "info is no dict",
            where,
            seen,
            "Equipoise does not read it; wrappers that do will fail.",
        )
    elif _both(info.get("TimeLimit.truncated", False), terminated):
        seen = "expected truncated=True, got terminated=True with info['TimeLimit.truncated']"
        found.error("a time limit is reported as terminated", where, seen, CLOCK)


CLOCK = (
    "The value after a row that only the clock cut is learned as 0: the policy comes to believe "
    "that good states are worth "
    "nothing near the limit."
)


def _both(one: object, other: object) -> bool:
    """Are two flags, of whatever kind they are, True for the same stream?"""
    try:
        return bool(np.any(np.logical_and(plain(one), plain(other))))
    except (NoArray, TypeError, ValueError):
        return False


def _first(wrong: Array, array: Array) -> tuple[str, Array]:
    at = np.argwhere(wrong)[0].tolist()
    return (f" at {at}" if at else ""), array[tuple(at)]
