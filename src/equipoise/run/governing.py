"""The governor of a run (``balance/governor.py``): its inputs from the run, and the use of the
values that it chooses.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from equipoise.balance.governor import Governor, Lever
from equipoise.balance.shares import add
from equipoise.cores import usable
from equipoise.plans.blueprint import Blueprint
from equipoise.programs.shard_refusals import check_shard_on
from equipoise.publishing import check_order
from equipoise.run.attempt import Attempt
from equipoise.run.reporter import Reporter
from equipoise.run.starting import Runtime
from equipoise.types import On, Program
from equipoise.workers.kind import Kind, LearningKind, SteppingKind, crew

LOOK_S = 2.0  # between two looks at what the learners waited
FILE = "governor.jsonl"  # of a run directory: a line for each step


def check_on(program: Program, on: On) -> None:
    """Refuse what cannot run there: worlds over a cluster, a governor if there is nothing that it
    could balance.
    """
    check_anywhere(program, on)
    if on == "process" and multiprocessing.current_process().daemon:
        raise ValueError(
            "on: must be serial in a daemonic process, such as a worker of multiprocessing.Pool, "
            "since it can have no processes of its own, got process; try on='serial', or "
            "concurrent.futures.ProcessPoolExecutor"
        )
    if program.placement.text == "elastic" and on == "process":
        _check_lendable(program)
    check_order(on)


def check_anywhere(program: Program, on: On) -> None:
    """Refuse what can run there on no machine, such as worlds over a cluster."""
    if on == "ray" and program.outside:
        raise ValueError(
            f"on: expected serial or process with {program.env.target}, since worlds need one "
            "machine, got ray"
        )
    if on == "ray" and (text := program.placement.text) != "apart":
        raise ValueError(
            f"on: must be process or serial with placement.text={text}, whose learners generate "
            "at home, got ray; try --placement apart"
        )
    check_shard_on(program, on)
    if program.placement.balance == "auto" and on == "serial":
        raise ValueError(
            "balance: expected off with on=serial, since actors and learner take turns anyway, got "
            "auto"
        )


def _check_lendable(program: Program) -> None:
    """Refuse lending on a machine whose only devices are the learners' own."""
    place = program.placement
    gpu = place.device != "cpu"
    # learners share the cores of a machine
    least, got = (place.learners + 1, torch.cuda.device_count()) if gpu else (2, usable())
    if place.device.startswith("cuda:"):
        raise ValueError(
            "placement.device: must be cuda with placement.text=elastic, whose learners and "
            f"generators have devices of their own, got {place.device}"
        )
    if got < least:
        raise ValueError(
            f"placement.text=elastic: must have at least {least} {'GPUs' if gpu else 'cores'}, one "
            f"more than the learners' own, got {got}; try --placement together"
        )


def governor(program: Program) -> Governor | None:
    """The governor of a run that has one; it begins with the limits."""
    place, levers = program.placement, dict[str, Lever]()
    if place.balance != "auto":
        return None
    if place.actors > (least := max(place.least_actors, place.learners)):
        levers["actors"] = Lever(least, place.actors, unit=place.learners)
    if place.max_lag is not None and place.max_lag > 1:
        levers["max_lag"] = Lever(1, place.max_lag)
    return Governor(levers, {name: lever.high for name, lever in levers.items()})


def governed(program: Program, values: dict[str, int]) -> Program:
    """The Program as it runs at the moment, as if that were for good."""
    place = program.placement
    lag = None if place.max_lag is None else values.get("max_lag", place.max_lag)
    placed = replace(place, actors=values.get("actors", place.actors), max_lag=lag, balance="off")
    return replace(program, placement=placed)


class Governing:
    """Call ``look`` as often as the driver looks at its workers."""

    def __init__(self, blue: Blueprint, kinds: Sequence[Kind], directory: Path) -> None:
        self._governor, self._program = governor(blue.program), blue.program
        self._file = directory / FILE
        self._updates = blue.pace.updates  # of a version that actors wait for
        members = crew(blue, kinds) if self._governor is not None else ()
        self._steppers = {  # the workers that step envs, by their number
            one.title: one.index for one in members if isinstance(one.kind, SteppingKind)
        }
        self._learners = {one.title for one in members if isinstance(one.kind, LearningKind)}
        self._runtime: Runtime | None = None  # that has the values
        # have all its workers begun? A worker that is replaced later is part of the measurement
        self._began = False
        self._looked_at, self._since, self._waited = 0.0, add(()), 0.0
        self._written = 0

    def look(self, attempt: Attempt, *, disturbed: bool) -> None:
        """``disturbed``: do workers save, or does an evaluation run at the same time?"""
        if (governor := self._governor) is None:
            return
        at = time.monotonic() - attempt.reporter.began
        # workers were replaced: send them the limits again
        if self._runtime is not attempt.runtime:
            self._runtime, self._began, self._since = attempt.runtime, False, add(())
            self._apply(governor, attempt)
        # all numbers of a run cost more than its version
        if not self._began or at - self._looked_at >= LOOK_S:
            self._looked_at = at
            self._measure(attempt)
        version = attempt.runtime.version // self._updates
        if governor.look(at, version, waited=self._waited, disturbed=disturbed or not self._began):
            self._apply(governor, attempt)
        if told := governor.told():
            attempt.reporter.note(told)
        self._write(governor, attempt.reporter)

    def _measure(self, attempt: Attempt) -> None:
        stats = attempt.runtime.stats()
        self._began = self._began or not stats.phases
        learners = add(one for title, one in stats.workers.items() if title in self._learners)
        seconds = learners.total - self._since.total
        starved = learners.starved - self._since.starved
        self._waited = min(max(starved / seconds, 0.0), 1.0) if seconds > 0 else 0.0
        self._since = learners

    def _apply(self, governor: Governor, attempt: Attempt) -> None:
        program = governed(self._program, governor.values)
        attempt.runtime.limit(program.placement.actors, program.placement.max_lag)
        paused = [
            title for title, index in self._steppers.items() if index >= program.placement.actors
        ]
        attempt.reporter.govern(program, paused, governed(self._program, governor.kept))

    def _write(self, governor: Governor, reporter: Reporter) -> None:
        """Append the steps whose outcome is known. A full disk costs the lines, not the run."""
        while (
            self._written < len(governor.decisions)
            and governor.decisions[self._written].kept is not None
        ):
            line = json.dumps(asdict(governor.decisions[self._written])) + "\n"
            self._written += 1
            try:
                with self._file.open("a", encoding="utf-8") as out:
                    out.write(line)
            except OSError as error:
                reporter.note(f"warning: {FILE} was not written: {error}")
