"""The base of the strategies: the plan, the check of their settings, and the names of trials."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from equipoise.hints import install
from equipoise.programs.ranges import out_of_range
from equipoise.studies.history import Decision, History, Start
from equipoise.studies.space import Settings
from equipoise.studies.strategy import Plan


@dataclass(frozen=True, kw_only=True)
class Base:
    """A strategy's plan, and its settings checked against their annotations."""

    plan: Plan
    needs_results: ClassVar[bool] = False
    changes_settings: ClassVar[bool] = False

    def __post_init__(self) -> None:
        name = type(self).__name__
        if wrong := out_of_range(self, f"{name}."):
            raise ValueError(wrong[0])
        if len(self.plan.space) == 0:
            raise ValueError(
                f"{name}: must have a space of at least one setting, got none; try KEY=LOW..HIGH"
            )
        for package in self._packages():
            if importlib.util.find_spec(package) is None:
                raise ImportError(f"{name} needs the package {package}: {install('tune')}")

    def _packages(self) -> Sequence[str]:
        """Return the packages of the extra ``tune`` that are imported."""
        return ()

    def draw(self, number: int) -> Settings:
        """Return the random settings of the trial that began as number ``number``."""
        return self.plan.space.sample(self.plan.rng("trial", number))

    def point(self, settings: Settings, steps: int) -> list[float]:
        """Return the place of settings and env steps in the unit cube."""
        return [*self.plan.space.shares(settings), min(steps / self.plan.steps, 1.0)]


def trial_name(number: int) -> str:
    """Return the name of the trial that began as number ``number``, from 0."""
    return f"trial_{number:04d}"


def boundary(every: int, beyond: int, steps: int) -> int:
    """Return the first multiple of ``every`` beyond so many env steps, at most ``steps``."""
    return min((beyond // every + 1) * every, steps)


def next_trials(
    history: History,
    count: int,
    to: int,
    choose: Callable[[int], Settings],
    reason: str,
    free: int | None = None,
) -> list[Decision]:
    """Return starts of the trials with the next numbers below ``count``, for as many as may begin
    now. ``{}`` in ``reason`` stands for the number from 1.
    """
    first = len(history.of())
    last = min(count, first + (history.free if free is None else free))
    return [
        Start(
            trial=trial_name(number),
            settings=choose(number),
            to=to,
            reason=reason.format(f"{number + 1} of {count}"),
        )
        for number in range(first, last)
    ]
