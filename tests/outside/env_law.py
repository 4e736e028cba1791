"""The law of a drawn env: every value follows from (stream, episode, t); and the book of what its
envs gave.
"""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces

from tests.outside import bent, env_grammar


class Broke(Exception):
    """What a drawn env raises by itself: its own words must come through."""


@dataclass(slots=True)
class Row:
    """What one row of a stream has to be."""

    first: bool
    valid: bool
    obs: Any = None  # as given, copied; ``unfit``: it is no row
    reward: float = 0.0
    terminated: bool = False
    action: Any = None  # that was taken to come here


@dataclass(slots=True)
class Book:
    """What the envs of this process were asked and gave, by stream, and what was wrong with what
    they were asked.
    """

    rows: dict[int, list[Row]] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    bent: set[str] = field(default_factory=set)  # what odd values were given
    failed: bool = False  # an env was made anew

    def begins(self, stream: int) -> None:
        """A new env for a stream that had one: the call that failed, if it was one, is no row."""
        if self.rows.get(stream):
            self.failed = True
            self.rows[stream].pop()

    def row(self, stream: int, row: Row) -> Row:
        self.rows.setdefault(stream, []).append(row)
        return row


BOOK = Book()  # of this process


def new_book() -> Book:
    """Begin the book anew."""
    BOOK.rows, BOOK.complaints, BOOK.bent, BOOK.failed = {}, [], set(), False
    bent.BUFFERS.clear()
    return BOOK


def plain(value: Any) -> Any:
    """A copy of what an env gave, as numpy has it: nested dicts by texts."""
    if isinstance(value, dict | UserDict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, tuple) or (
        isinstance(value, list) and any(_has_parts(one) for one in value)
    ):
        return {str(i): plain(one) for i, one in enumerate(value)}
    if value is None:
        return None
    try:
        return np.array(value.detach() if hasattr(value, "detach") else value)
    except Exception:
        return None


def _has_parts(value: Any) -> bool:
    return isinstance(value, dict | np.ndarray) or (
        isinstance(value, list) and any(_has_parts(one) for one in value)
    )


def counts_of(action: Any) -> list[int]:
    if isinstance(action, spaces.Discrete):
        return [int(action.n)]
    return (
        [int(n) for n in np.ravel(action.nvec)] if isinstance(action, spaces.MultiDiscrete) else []
    )


REPEATING = ("StickyAction", "RepeatAction", "MaxAndSkipObservation")


class Law:
    """The law of one description: every value follows from (stream, episode, t)."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.said, self.odd = said, dict(said["odd"])
        self.inner, self.action = (
            env_grammar.made(said["observation"]),
            env_grammar.made(said["action"]),
        )
        self.counts = counts_of(self.action)
        for name in ("mask_info", "mask_obs"):
            if not self.counts:
                self.odd.pop(name, None)
        self.observation: Any = self.inner
        if "mask_obs" in self.odd and self.odd["mask_obs"] != "absent":
            self.observation = spaces.Dict(
                {"obs": self.inner, "action_mask": self.mask_space(self.odd["mask_obs"])}
            )

    def mask_space(self, way: str) -> spaces.Space[Any]:
        count = sum(self.counts)
        if way == "tuple" and len(self.counts) > 1:
            return spaces.Tuple([spaces.MultiBinary(n) for n in self.counts])
        if way in ("nan", "inf", "negative", "half", "two"):
            return spaces.Box(-1, 2, (count,), np.float32)
        return (
            spaces.Box(0, 1, (count,), np.dtype(way).type)
            if way in ("float64", "int64", "bool", "uint8")
            else spaces.MultiBinary(count)
        )

    def episode(self, stream: int, number: int) -> tuple[int, bool, bool]:
        """Length, terminated, truncated."""
        h = env_grammar.mixed("episode", stream, number)
        how = (
            self.said["ending"]
            if self.said["ending"] != "mixed"
            else ("terminated", "truncated", "both", "truncated")[h % 4]
        )
        return (
            1 + (h // 8) % int(self.said["longest"]),
            how in ("terminated", "both"),
            how in ("truncated", "both"),
        )

    def allowed(self, *place: int) -> Any:
        """The mask [n] bool: at least one value of each choice."""
        if "all" in (self.odd.get("mask_info"), self.odd.get("mask_obs")):
            return np.ones(sum(self.counts), np.bool_)
        parts = []
        for j, n in enumerate(self.counts):
            some = np.array([env_grammar.mixed("mask", *place, j, i) % 2 == 0 for i in range(n)])
            some[env_grammar.mixed("mask", *place, j) % n] = True
            parts.append(some)
        return np.concatenate(parts)

    def note(self, name: str, did: bool) -> None:
        if did:
            BOOK.bent.add(f"{name}:{self.odd[name]}")

    def obs(self, late: bool, *place: int) -> Any:
        value = env_grammar.member(self.inner, "obs", *place)
        if late and "values" in self.odd:
            value, did = bent.observation(value, self.inner, self.odd["values"], place[0])
            self.note("values", did)
        if self.observation is self.inner:
            return value
        return {"obs": value, "action_mask": self.mask("mask_obs", late, *place)}

    def mask(self, name: str, late: bool, *place: int) -> Any:
        way, allowed = self.odd[name], self.allowed(*place)
        if name == "mask_obs" and way in ("tuple", "float64", "int64", "bool", "uint8"):
            late = True  # its space says so
        if not late:
            return allowed.astype(
                np.int8 if name == "mask_info" else self.mask_space(way).dtype or np.int8
            )
        value, did = bent.mask(allowed, self.counts, way)
        self.note(name, did)
        return value

    def reward(self, number: int, t: int, action: Any) -> float:
        return 16.0 * (number % 4) + 1 + t + self.mark(action) / 8

    def mark(self, action: Any) -> int:
        """A number from 0 to 7 of an action's whole numbers."""
        if isinstance(action, dict):
            return sum(self.mark(one) for one in action.values()) % 8
        if isinstance(action, tuple | list):
            return sum(self.mark(one) for one in action) % 8
        x = np.asarray(action)
        return int(x.sum()) % 8 if x.dtype.kind in "iu" else 0

    def outcome(
        self, late: bool, reward: Any, terminated: Any, truncated: Any
    ) -> tuple[Any, Any, Any]:
        given = {"reward": reward, "terminated": terminated, "truncated": truncated}
        for name, value in given.items():
            if late and name in self.odd:
                given[name], did = (bent.number if name == "reward" else bent.flag)(
                    value, self.odd[name]
                )
                self.note(name, did)
        return given["reward"], given["terminated"], given["truncated"]

    def info(self, late: bool, t: int) -> Any:
        if late and "info" in self.odd:
            self.note("info", True)
            return bent.info(t, self.odd["info"])
        return {"speed": float(t)} if self.said["metrics"] else {}

    def judge(self, action: Any, *place: int, asked: bool = True) -> None:
        """Write down an action that is none, or one that the mask forbids."""
        if not self.action.contains(action):
            BOOK.complaints.append(
                f"{action!r} ({type(action).__name__}) is no member of {self.action}"
            )
            return
        # A wrapper may make another space of the observation, where nobody knows the mask.
        masked = self.odd.get(
            "mask_info", "none" if "wrapper" in self.odd else self.odd.get("mask_obs", "none")
        )
        # they give the env an action that was chosen for a row before
        if self.odd.get("wrapper") in REPEATING:
            return
        if not asked or masked not in (
            "int8",
            "bool",
            "float64",
            "int64",
            "uint8",
            "list",
            "python_bools",
            "tuple",
        ):
            return
        allowed, at = self.allowed(*place), 0
        starts = np.ravel(getattr(self.action, "start", 0)) + np.zeros(len(self.counts), int)
        for n, one, start in zip(self.counts, np.ravel(action), starts, strict=True):
            if not allowed[at + int(one) - int(start)]:
                BOOK.complaints.append(
                    f"{action!r} is forbidden by the mask {allowed.astype(int)} at {place}"
                )
            at += n
