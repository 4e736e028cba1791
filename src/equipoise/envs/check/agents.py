"""PettingZoo envs under check: actions for all agents, facts by agent, and PettingZoo's own
``parallel_api_test``.
"""

from __future__ import annotations

import contextlib
import functools
import io
import linecache
import traceback
import warnings
from typing import Any

import numpy as np

from equipoise import foreign
from equipoise.envs.check.clock import Clock, OutOfTime
from equipoise.envs.check.findings import Findings, judge_spaces
from equipoise.envs.check.places import line_of, of_error, words
from equipoise.envs.check.probe import sample
from equipoise.envs.families.joint import Joint
from equipoise.envs.masks import legal, place_of
from equipoise.envs.spaces import member
from equipoise.types import Array, Tree

# rules that training does not need, since agents may come back
HARMLESS = ("revived", "exact same space object")
TOOLS = "Training does without it; PettingZoo's wrappers and conversions do not."
READERS = (
    "The env breaks its interface: code that relies on it fails, such as PettingZoo's wrappers."
)
CYCLES = 200  # steps of each of the two episodes of parallel_api_test, if there is time


def joint_actions(joint: Joint, count: int, seed: int) -> Array:
    """Draw the joint actions [count, D] of all agents, each from its own space."""
    drawn = [sample(space, count, (), seed + i) for i, space in enumerate(joint.actions.values())]
    return np.concatenate(
        [np.reshape(part, (count, -1)).astype(np.float64) for part in drawn], axis=1
    )


class JointMasks:
    """Replaces forbidden actions of agents by allowed ones, as their observations allow."""

    def __init__(self, joint: Joint, choice: str) -> None:
        keys = [
            place_of(choice, joint.observations[name], joint.actions[name]) for name in joint.names
        ]
        self._masked = [
            (name, joint.actions[name], path, *part)
            for name, path, part in zip(joint.names, keys, joint.parts, strict=True)
            if path
        ]

    def __call__(self, action: Array, obs: Tree) -> None:
        """Change ``action`` [1, D] in place by the observation ``obs`` of the joint env."""
        for name, space, path, columns, shape, dtype in self._masked:
            one = action[:, columns].reshape(1, *shape).astype(dtype)
            legal(space, one, functools.reduce(member, path, obs["agents"][name]))
            action[:, columns] = one.reshape(1, -1)


def judge_agents(found: Findings, joint: Joint) -> None:
    for name in joint.names:
        judge_spaces(found, joint.observations[name], joint.actions[name], f"/agents/{name}")


def parallel_rules(found: Findings, joint: Joint, clock: Clock, step_s: float) -> str:
    """Run PettingZoo's ``parallel_api_test``; OutOfTime if a few steps would take too long.

    A broken rule is a finding in the test's words, an exception one with the env's line. Returns
    why the test was not made, such as a missing package; "" if it was.
    """
    try:
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
            from pettingzoo.test import parallel_api_test  # imports games, and with them pygame
    except ModuleNotFoundError as error:
        return f"it needs {error.name}, which is not installed"
    cycles = min(CYCLES, int(clock.left_s / 4 / max(step_s, 1e-6)))
    if cycles < 2:
        raise OutOfTime
    with warnings.catch_warnings(record=True) as said, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        for i, space in enumerate(joint.actions.values()):
            space.seed(i)  # the test draws from them
        try:
            parallel_api_test(AnnouncedEnv(joint.env, clock), num_cycles=cycles)
        except AssertionError as error:
            if traceback.extract_tb(error.__traceback__)[-1].name == "parallel_api_test":
                _broken(found, error)
            else:  # the env's own
                _raised(found, error, joint)
        except OutOfTime:
            raise
        except Exception as error:
            _raised(found, error, joint)
    for text in dict.fromkeys(str(one.message) for one in said if "parallel_test" in one.filename):
        found.note(
            f"PettingZoo's parallel_api_test warns: {text}",
            "parallel_api_test",
            "expected no warning",
            TOOLS,
        )
    return ""


def _broken(found: Findings, error: AssertionError) -> None:
    """A rule in the words of the test, else as its code has it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    code = (
        linecache.getline(frame.filename, frame.lineno or 0)
        .strip()
        .removeprefix("assert ")
        .removesuffix(", (")
    )
    rule = str(error) if str(error)[:1].isalpha() else code
    mild = any(word in rule for word in HARMLESS)
    what = "a rule of PettingZoo's parallel_api_test is broken"
    where = f"parallel_api_test, line {frame.lineno}"
    found.add(
        "note" if mild else "error",
        what,
        where,
        f"expected: {rule}; got {_state(error)}",
        TOOLS if mild else READERS,
    )


def _raised(found: Findings, error: Exception, joint: Joint) -> None:
    method = (
        "reset"
        if any(frame.name.endswith("AnnouncedEnv.reset") for frame in of_error(error))
        else "step"
    )
    # training gives no such argument
    mild = isinstance(error, TypeError) and "options" in str(error)
    seen = f"{words(error)} ({line_of(error, joint, method)})"
    what = f"{method}() raises {type(error).__name__} in PettingZoo's parallel_api_test"
    found.add(
        "note" if mild else "error", what, "parallel_api_test", seen, TOOLS if mild else READERS
    )


def _state(error: AssertionError) -> str:
    """The test's state when its rule was broken: the agents, and the keys of the last answer."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    local = frame.f_locals
    shown = {"env.agents": list(foreign.optional(local.get("par_env"), "agents", ()))}
    for name in ("obs", "rew", "terminated", "truncated"):
        if name in local:
            shown[name] = (
                list(local[name]) if isinstance(local[name], dict) else [type(local[name]).__name__]
            )
    return ", ".join(f"{name} {keys}" for name, keys in shown.items())


class AnnouncedEnv:
    """A parallel env that announces its calls, and has what PettingZoo's base class has."""

    def __init__(self, env: Any, clock: Clock) -> None:
        self._env, self._clock, self._steps = env, clock, 0
        self.unwrapped = foreign.optional(env, "unwrapped", env)

    def __getattr__(self, name: str) -> object:
        return getattr(self._env, name)

    def reset(self, *given: object, **named: object) -> Tree:
        self._clock.call(f"reset({', '.join(named)})")
        return self._env.reset(*given, **named)

    def step(self, actions: Tree) -> Tree:
        self._steps += 1
        self._clock.call(f"step {self._steps}")
        return self._env.step(actions)
