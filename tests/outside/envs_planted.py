"""Faults of envs' values and keys that were reported once, put back: the net of drawn envs has to
find each.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from equipoise import tree
from equipoise.envs import final, loop, masks, spaces, values
from equipoise.envs.check import info_probe, probe
from equipoise.envs.check.drawn import Drawn
from equipoise.envs.failures import row_checks
from equipoise.envs.families import joint
from equipoise.tuning import sizing
from tests.outside.harness import Planted


def masks_beside_zero(patch: pytest.MonkeyPatch) -> None:
    """Whatever is not 0 allows: nan, -1 and infinities, too."""
    for module in (masks, row_checks, joint):
        patch.setattr(module, "odd", lambda mask: np.zeros(np.shape(mask), np.bool_))


def texts_are_rewards(patch: pytest.MonkeyPatch) -> None:
    """NumPy reads a text as a number."""
    real = values.number

    def number(value: Any, *more: Any) -> Any:
        return float(value) if isinstance(value, str) else real(value, *more)

    patch.setattr(loop, "number", number)


def truth_of_flags(patch: pytest.MonkeyPatch) -> None:
    """A flag is its truth value: the text "0" ends an episode, None never does."""
    for module in (loop, masks, joint):
        patch.setattr(module, "flag", lambda value, *more: bool(value))


def zeros_are_actions(patch: pytest.MonkeyPatch) -> None:
    """The look at an env's pace sends 0, which is no member of a Discrete that starts at 5."""

    class Zeros:
        def __init__(self, env: Any, *more: Any) -> None:
            self._env = env

        def __call__(self, n: int, ts: Any) -> Any:
            return self._env.form.zeros()

    patch.setattr(sizing, "Drawn", Zeros)


def finals_are_one_array(patch: pytest.MonkeyPatch) -> None:
    """Last observations in a list are made an array at once, by training alone: None among them is
    none.
    """
    real = final.read

    def read(target: Any, info: Any, rows: Any) -> Any:
        if (key := final.named(info)) is not None and isinstance(info[key], list | tuple):
            np.asarray(info[key], np.float32)
        return real(target, info, rows)

    patch.setattr(final, "read", read)


def metrics_write_into_drawn_actions(patch: pytest.MonkeyPatch) -> None:
    """The walk that looks for metrics is given actions that nobody may write, and a mask replaces
    them in place.
    """
    real = probe.sample

    class Frozen(Drawn):
        def __init__(self, env: Any, count: int, seed: int) -> None:
            super().__init__(env, count, seed)
            self._actions = real(env.spec.action, count, (1,), seed)
            for leaf in tree.leaves(self._actions):
                leaf.flags.writeable = False

    patch.setattr(info_probe, "Drawn", Frozen)


def arrays_have_elements(patch: pytest.MonkeyPatch) -> None:
    """The first bound of an array is asked for, which may have none."""
    real = row_checks.uniform

    def uniform(bound: Any, array: Any) -> Any:
        np.asarray(bound, array.dtype).flat[0]
        return real(bound, array)

    patch.setattr(row_checks, "uniform", uniform)


def streams_change_places(patch: pytest.MonkeyPatch) -> None:
    """Each stream is given the next one's action."""
    real = spaces.ActionForm.each
    patch.setattr(spaces.ActionForm, "each", lambda self, actions: list(real(self, actions))[::-1])


def seams_are_steps(patch: pytest.MonkeyPatch) -> None:
    """A truncation is learned as a termination: nothing is bootstrapped after it."""
    real = loop.LoopEnv._step

    @functools.wraps(real)
    def step(self: Any) -> None:
        real(self)
        np.logical_or(self.ts.terminated, self.ts.truncated, out=self.ts.terminated)

    patch.setattr(loop.LoopEnv, "_step", step)


PLANTED = [
    Planted(
        "a mask is compared with 0",
        "envs",
        masks_beside_zero,
        ("fine with mask", "rows: obs/action_mask"),
    ),
    Planted(
        "a text is a reward",
        "envs",
        texts_are_rewards,
        ("fine with reward:number_text", "check is not: reward"),
    ),
    Planted(
        "a flag is its truth value",
        "envs",
        truth_of_flags,
        ("fine with t", "check is not: t", "rows: "),
    ),
    Planted(
        "an action that no policy made is none",
        "envs",
        zeros_are_actions,
        ("an action that is none",),
    ),
    Planted(
        "last observations come in a list",
        "envs",
        finals_are_one_array,
        ("no sentence", "traceback"),
    ),
    Planted(
        "metrics with masks",
        "envs",
        metrics_write_into_drawn_actions,
        ("no sentence: ValueError", "traceback ValueError"),
    ),
    Planted(
        "an array without elements",
        "envs",
        arrays_have_elements,
        ("no sentence: NotMade", "IndexError"),
    ),
    Planted(
        "streams change places",
        "envs",
        streams_change_places,
        ("rows: action", "rows: reward", "rows: "),
    ),
    Planted("a truncation is a termination", "envs", seams_are_steps, ("rows: bootstrap",)),
]
