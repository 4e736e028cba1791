"""A raw env, stepped as training steps it before any adapter mends its answers; its answers become
rows to compare.
"""

from __future__ import annotations

import contextlib
import functools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from equipoise import tree
from equipoise.cores import run_delay_s
from equipoise.envs.base import SyncEnv
from equipoise.envs.check.clock import Clock
from equipoise.envs.check.findings import STOPS, Broken, Findings, Flat, bounds, flatten
from equipoise.envs.check.places import line_of, words
from equipoise.envs.failures.row_checks import ZERO_OR_ONE, Mask, WrongValue
from equipoise.envs.families.old_gym import VALUES, advice
from equipoise.envs.loop import LoopEnv
from equipoise.envs.masks import counted, legal
from equipoise.envs.spaces import member, observation_spec
from equipoise.envs.values import NoArray, flags, plain, taken
from equipoise.hints import message
from equipoise.types import Array, Tree

OUTCOMES = ("terminated", "truncated", "reward")
Rows = list[tuple[str, Flat]]  # (where, place -> array [*lead, ...]) of every answer of a walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of one call. After a ``reset`` only the observation means anything."""

    where: str  # "reset(seed)", "step 17", "reset() before step 18"
    obs: Tree
    reward: Array = 0.0
    terminated: Array = False
    truncated: Array = False
    info: Tree
    reset: bool
    seconds: float


class Probe:
    """One Python env of a ``LoopEnv``, or the vector env of B streams inside the other adapters."""

    # share of the first walk's time after which it resets, so that shorter walks also do
    HURRY = 0.2

    def __init__(
        self,
        made: SyncEnv,
        found: Findings,
        clock: Clock,
        *,
        reset_at: int,
        index: int = 0,
        watch: bool = False,
        masks: Callable[[Array, Tree], None] | None = None,
    ) -> None:
        """``index``: the Python env to probe. ``watch``: look at global random generators (slow).

        ``masks``: makes a joint action of several agents an allowed one.
        """
        self.found, self.clock, self.reset_at, self.watch, self.masks = (
            found,
            clock,
            reset_at,
            watch,
            masks,
        )
        self.hurries = False  # the first walk may reset before ``reset_at``, and sets it
        self.python = isinstance(made, LoopEnv)
        self.lead: tuple[int, ...] = ()
        self.seed: object
        if isinstance(made, LoopEnv):
            self.env: Any = made.envs[index]
            self.seed = made._seeds[index]
        else:
            self.env = made.env  # type: ignore[attr-defined]
            self.lead = (len(made.ts.stream),)
            self.seed = made._seed  # type: ignore[attr-defined]  # None: it was given when the env was made
        self.streams = self.lead[0] if self.lead else 1  # streams that one call steps
        self.space, self.form = made.spec.observation, made.form
        self.action, self.mask = made.spec.action, made.spec.mask
        self.touched = ""  # the first call that touched a global generator

    def walk(self, actions: Tree) -> Iterator[Answer]:
        """A seeded reset, then N steps with ``actions`` [N, *lead, ...], made allowed ones.

        A Python env is reset without a seed after an end, as in ``LoopEnv``; if none has ended
        before step ``reset_at``, also there. OutOfTime if the clock's time is up.
        """
        answer = self._reset("reset(seed)", self.seed)
        yield answer
        ended = reset = False
        own = tree.map(np.array, actions)  # as in training, if an env may keep it or write to it
        for n in range(1, len(tree.leaves(own)[0]) + 1):
            if (
                self.hurries
                and n > 1
                and not (reset or ended)
                and n < self.reset_at
                and self.clock.used > self.HURRY
            ):
                self.reset_at = n
            if self.python and (ended or (not reset and n == self.reset_at)):
                answer = self._reset(f"reset() before step {n}", None)
                yield answer
                reset = True
            action = tree.index(own, slice(n - 1, n)) if self.python else tree.index(own, n - 1)
            self._allow(answer, action)
            answer = self._step(
                f"step {n}", self.form.one(action) if self.python else self.form.together(action)
            )
            yield answer
            ended = self.python and bool(self.ended(answer).any())

    def _allow(self, answer: Answer, action: Tree) -> None:
        """Make an action an allowed one, in place; Broken if the mask cannot be read."""
        try:
            if self.mask:
                legal(self.action, action, functools.reduce(member, self.mask, answer.obs))
            if self.masks is not None:
                self.masks(action, answer.obs)
        except (LookupError, TypeError, ValueError) as error:
            seen = (
                "expected one number for each action, got a mask that cannot be read: "
                f"{words(error)}"
            )
            self.found.error("the action mask is no mask", answer.where, seen, STOPS)
            raise Broken from error

    def rows(self, actions: Tree) -> Rows:
        return [
            (answer.where, self.row(answer, self.observed(answer))) for answer in self.walk(actions)
        ]

    def observed(self, answer: Answer) -> Flat:
        """The observation as the env gave it, not copied."""
        return flatten(self.found, self.space, answer.obs, answer.where)

    def row(self, answer: Answer, observed: Flat) -> Flat:
        """Return {place: array}, copied, without parts that are no numbers (findings already)."""
        row = {}
        for place, value in (
            observed
            | {
                "terminated": answer.terminated,
                "truncated": answer.truncated,
                "reward": answer.reward,
            }
        ).items():
            with contextlib.suppress(NoArray):
                if (array := plain(value)).dtype.kind in "fiub":
                    row[place] = np.array(array)
        return row

    def ended(self, answer: Answer) -> Array:
        """[B] bool: the streams whose episode ends; False if no flag can be read."""
        over = np.zeros(self.streams, np.bool_)
        for value in (answer.terminated, answer.truncated):
            with contextlib.suppress(WrongValue):
                over |= flags(value if self.lead else [value], self.streams, "")
        return over

    def judge_masks(self, answer: Answer) -> None:
        """Judge the action masks among the observations; a mask that is no array is a finding
        already.
        """
        if not self.mask:
            return
        spec = tree.prepend(
            functools.reduce(member, self.mask, observation_spec(self.space)), *self.lead
        )
        try:
            rows = taken(spec, functools.reduce(member, self.mask, answer.obs), None)
        except (WrongValue, LookupError, TypeError):
            return
        rows = rows if self.lead else tree.map(lambda x: x[None], rows)
        over = self.ended(answer) & (not answer.reset)
        for key, array, begins in counted(tree.path_of("obs", *self.mask), rows, self.action):
            mask = Mask(key=key, array=array, begins=begins)
            if (odd := mask.odd(over)).any():
                seen = (
                    f"expected {ZERO_OR_ONE}, got {array[odd][0]} at "
                    f"[{int(np.argwhere(odd)[0][1])}]"
                )
                self.found.error(f"{key} is no mask", answer.where, seen, STOPS)
            elif mask.stuck(over).any():
                seen = "expected at least one action allowed, got none"
                self.found.error(f"{key} allows nothing", answer.where, seen, STOPS)

    def _reset(self, where: str, seed: object) -> Answer:
        result, seconds = self._call(where, lambda: self.env.reset(seed=seed))
        if not isinstance(result, tuple | list) or len(result) != 2:
            self._refuse(
                "reset() does not return (obs, info)", where, "a tuple of 2", result, old=True
            )
        self._judge_list("reset", where, result)
        return Answer(where=where, obs=result[0], info=result[1], reset=True, seconds=seconds)

    def _step(self, where: str, action: Tree) -> Answer:
        result, seconds = self._call(where, lambda: self.env.step(action), action)
        self._judge_form(where, result)
        obs, reward, terminated, truncated, info = result
        return Answer(
            where=where,
            obs=obs,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            info=info,
            reset=False,
            seconds=seconds,
        )

    def _judge_form(self, where: str, result: object) -> None:
        if isinstance(result, tuple) and len(result) == 4:
            what = "step() returns 4 values, as Gym did before 0.26"
            self._refuse(
                what, where, "(obs, reward, terminated, truncated, info)", result, old=True
            )
        if not isinstance(result, tuple | list) or len(result) != 5:
            self._refuse(
                "step() does not return 5 values",
                where,
                "(obs, reward, terminated, truncated, info)",
                result,
            )
        self._judge_list("step", where, result)

    def _judge_list(self, method: str, where: str, result: object) -> None:
        if isinstance(result, list):
            seen = f"expected a tuple of {len(result)}, got a list"
            self.found.note(
                f"{method}() returns a list",
                where,
                seen,
                "Training reads it as a tuple; Gymnasium's own checker does not.",
            )

    def _refuse(
        self, what: str, where: str, expected: str, result: object, *, old: bool = False
    ) -> None:
        got = (
            f"a {type(result).__name__} of {len(result)}"
            if isinstance(result, tuple | list)
            else type(result).__name__
        )
        cost = (
            f"{STOPS} If this is old gym's interface, {advice(self.env.unwrapped, old=True)}."
            if old
            else STOPS
        )
        self.found.error(what, where, f"expected {expected}, got {got}", cost)
        raise Broken

    def _call(
        self, where: str, call: Callable[..., Tree], action: Tree = None
    ) -> tuple[Tree, float]:
        """The result of the call and its seconds of computing. An exception is a finding."""
        self.clock.call(where)
        before = global_generators() if self.watch and not self.touched else None
        began, late = time.perf_counter(), run_delay_s()
        try:
            result = call()
        except (Exception, SystemExit) as error:
            # a wrapper raised: look at the env's own answer
            if action is not None and "to unpack" in message(error):
                try:
                    result = self.env.unwrapped.step(action)
                except Exception:  # its own code unpacks wrongly
                    result = (None,) * 5
                self._judge_form(where, result)
            self._raised(where, "reset" if action is None else "step", error)
            raise Broken from error
        late = run_delay_s() - late
        seconds = max(time.perf_counter() - began - late, 0.0)
        if before is not None and changed(before, global_generators()):
            self.touched = where
        return result, seconds

    def _raised(self, where: str, method: str, error: BaseException) -> None:
        cost = "In training it costs that episode; three times in a row end the run."
        if (
            method == "reset"
            and isinstance(error, TypeError)
            and "unexpected keyword argument" in message(error)
        ):
            cost = (
                "No episode can begin. If this is old gym's interface, "
                f"{advice(self.env.unwrapped, old=True)}; {VALUES}."
            )
        elif isinstance(error, SystemExit):
            cost = (
                "It ends the worker's process; the third time in a row without progress ends "
                "the run."
            )
        if isinstance(error, WrongValue):  # of a wrapper of ours
            self.found.error(
                f"{error.key} is wrong", where, f"expected {error.expected}, got {error.got}", STOPS
            )
            return
        seen = f"{words(error)} ({line_of(error, self.env, method)})"
        self.found.error(f"{method}() raises {type(error).__name__}", where, seen, cost)


def global_generators() -> tuple[object, object]:
    return np.random.get_state(), random.getstate()


def changed(before: tuple[Any, Any], after: tuple[Any, Any]) -> bool:
    one, other = before[0], after[0]
    return before[1] != after[1] or one[2] != other[2] or not np.array_equal(one[1], other[1])


def set_global_generators(state: tuple[Any, Any]) -> None:
    np.random.set_state(state[0])
    random.setstate(state[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    where: str
    what: str  # "obs/position at [2]: expected 0.5, got 0.25"


def difference(expected: Rows, got: Rows) -> Difference | None:
    """Find the first place where two walks differ, bit for bit."""
    for (where, one), (where_other, other) in zip(expected, got):
        if where != where_other:
            return Difference(where=where, what=f"expected {where}, got {where_other}")
        for place, value in one.items():
            new = other.get(place)
            if new is None or value.shape != new.shape:
                shape = "none" if new is None else new.shape
                return Difference(
                    where=where, what=f"{place}: expected shape {value.shape}, got {shape}"
                )
            if not same(value, new):
                wrong = (value != new) & ((value == value) | (new == new))
                at = tuple(np.argwhere(wrong)[0].tolist())
                index = f" at {list(at)}" if at else ""
                return Difference(
                    where=where, what=f"{place}{index}: expected {value[at]}, got {new[at]}"
                )
    return None


def same(one: Array, other: Array) -> bool:
    """Are all elements equal, NaN with NaN included?"""
    return np.array_equal(one, other) or (
        one.dtype.kind == "f" and np.array_equal(one, other, equal_nan=True)
    )


def sample(space: spaces.Space[object], count: int, lead: tuple[int, ...], seed: int) -> Tree:
    """Draw actions [count, *lead, ...] in the env's dtypes, the same for all streams: uniform.

    A quarter of a Box's numbers lie on its bounds; without bounds they are normal noise.
    """
    return _drawn(space, count, lead, np.random.default_rng(seed))


def _drawn(
    space: spaces.Space[object], count: int, lead: tuple[int, ...], rng: np.random.Generator
) -> Tree:
    if (inner := tree.branches(space)) is not None:
        return {key: _drawn(one, count, lead, rng) for key, one in inner.items()}
    alone = space.shape or ()
    shape = (count, *alone)
    if not isinstance(space, spaces.Box):
        least, most = bounds(space)
        drawn = rng.integers(least, most, size=shape, endpoint=True)
    else:
        bounded = space.bounded_below & space.bounded_above
        low, high = (np.where(bounded, bound, 0.0) for bound in (space.low, space.high))
        # In halves, since the widest bounds are further apart than any float.
        drawn = np.where(bounded, 2 * rng.uniform(low / 2, high / 2, shape), rng.normal(size=shape))
        drawn = np.where(
            rng.random(shape) < 0.25,
            np.where(rng.random(shape) < 0.5, space.low, space.high),
            drawn,
        )
        drawn = np.clip(
            np.where(np.isfinite(drawn), drawn, rng.normal(size=shape)), space.low, space.high
        )
    rows = drawn.astype(space.dtype).reshape(count, *[1] * len(lead), *alone)
    # masks write into the copy
    return np.array(np.broadcast_to(rows, (count, *lead, *alone)))
