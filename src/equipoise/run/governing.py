"""The governor of a run (``balance/governor.py``): what it is told of the run, and where the values that it chooses go."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from equipoise.balance.governor import Governor, Lever
from equipoise.balance.shares import add
from equipoise.run.attempt import Attempt
from equipoise.run.reporter import Reporter
from equipoise.run.starting import Runtime
from equipoise.runtime.blueprint import Blueprint
from equipoise.types import On, Program
from equipoise.workers.kind import Kind, crew

FILE = "governor.jsonl"  # of a run directory: a line for each step


def check_balance(program: Program, on: On) -> None:
    """Refuse a governor where there is nothing that it could balance."""
    if program.placement.balance == "auto" and on == "serial":
        raise ValueError("balance: expected off with on=serial, where actors and learner take turns anyway, got auto")


def governor(program: Program) -> Governor | None:
    """The governor of a run that has one; it begins with the limits."""
    place, levers = program.placement, dict[str, Lever]()
    if place.balance != "auto":
        return None
    if place.actors > (least := max(place.least_actors, place.learners)):
        levers["actors"] = Lever(least, place.actors)
    if place.max_lag is not None and place.max_lag > 1:
        levers["max_lag"] = Lever(1, place.max_lag)
    return Governor(levers, {name: lever.high for name, lever in levers.items()})


def governed(program: Program, values: dict[str, int]) -> Program:
    """The Program as it runs at the moment."""
    place = program.placement
    lag = None if place.max_lag is None else values.get("max_lag", place.max_lag)
    placed = replace(place, actors=values.get("actors", place.actors), max_lag=lag)
    return replace(program, placement=placed)


class Governing:
    """Call ``look`` as often as the driver looks at its workers."""

    def __init__(self, blue: Blueprint, kinds: Sequence[Kind], directory: Path) -> None:
        self._governor, self._program, self._file = governor(blue.program), blue.program, directory / FILE
        self._steppers = {  # the workers that step envs, by their number
            one.title: one.index for one in crew(blue, kinds) if one.kind.side == "sampling" and not one.kind.serves
        }
        self._runtime: Runtime | None = None  # that has the values
        self._written, self._since = 0, add(())

    def look(self, attempt: Attempt, *, disturbed: bool) -> None:
        """``disturbed``: do workers save, or does an evaluation go on beside them?"""
        if (governor := self._governor) is None:
            return
        stats, at = attempt.runtime.stats(), time.monotonic() - attempt.reporter.began
        if self._runtime is not attempt.runtime:  # new workers, who know no limits
            self._runtime, disturbed = attempt.runtime, True
            self._apply(governor, attempt)
        learners = add(one for one in stats.workers.values() if one.side == "learning")
        total, waited = learners.total - self._since.total, learners.starved - self._since.starved
        share = min(max(waited / total, 0.0), 1.0) if total > 0 else 0.0
        if governor.look(at, stats.version, waited=share, disturbed=disturbed or bool(stats.phases)):
            self._since = learners
            self._apply(governor, attempt)
        if told := governor.told():
            attempt.reporter.note(told)
        self._write(governor, attempt.reporter)

    def _apply(self, governor: Governor, attempt: Attempt) -> None:
        place = governed(self._program, governor.values).placement
        attempt.runtime.limit(place.actors, place.max_lag)
        paused = [title for title, index in self._steppers.items() if index >= place.actors]
        attempt.reporter.govern(governed(self._program, governor.values), paused)

    def _write(self, governor: Governor, reporter: Reporter) -> None:
        """Append the steps whose outcome is known by now. A full disk costs the lines, not the run."""
        known = [one for one in governor.decisions if one.kept is not None]
        fresh, self._written = known[self._written :], len(known)
        if fresh:
            try:
                with self._file.open("a", encoding="utf-8") as out:
                    out.writelines(json.dumps(one.to_json()) + "\n" for one in fresh)
            except OSError as error:
                reporter.note(f"warning: {FILE} was not written: {error}")
