"""Whole runs, measured for some seconds and thrown away: the run's own envs, networks and learners,
in turns.

The measure is the rows a second that the envs give while they are learned from.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from equipoise.errors import WorkerFailed
from equipoise.facts import values_of
from equipoise.plans.blueprint import Blueprint
from equipoise.plans.plan import plan_run
from equipoise.programs.fields import alter
from equipoise.runtime.process import forkserver
from equipoise.runtime.process.process import ProcessRuntime
from equipoise.runtime.session import Interrupt
from equipoise.tuning.forward import forward_of, forwards
from equipoise.tuning.race import Race, race
from equipoise.types import Program, learning

TURN_S, TURNS = 1.25, 2  # seconds of a turn, and turns of each run: changing load should not decide
UPDATES, LONGEST_S = 4, 10.0  # minimum updates of a turn, and maximum seconds
FAR = 1.3  # a run that the fastest one beats by more has no second turn
FIRST_S, MARGIN_S = 5.0, 1.0  # the assumed cost of the first turn; for the end of the last one
SLICE_S = 0.02
ENDLESS = 1 << 40  # updates
ROWS = 50_000  # most rows of a replay

Tell = Callable[[str], object]


def outcome(race: Race) -> str:
    """The result of each run, in words."""
    gone = [f"{label} failed: {error.reason}" for label, error in race.failed.items()]
    gone += [
        f"{label} did not come to two updates in time"
        for label, rates in race.rates.items()
        if rates and not max(rates) and label not in race.failed
    ]
    made = [f"{label} made {rate:,.0f} steps/s" for label, rate in race.best.items()]
    late = [f"there was no time to try {', '.join(race.left_out)}"] if race.left_out else []
    return ", ".join([*gone, *made, *late])


def raced(
    programs: Mapping[str, Program],
    interrupt: Interrupt,
    *,
    until: float,
    turn_s: float = TURN_S,
    turns: int = TURNS,
    far: float = FAR,
    tell: Tell = lambda text: None,
) -> Race:
    """Measure the steps/s of runs in turns, until ``until`` (``time.monotonic``).

    A run that the fastest one beats by more than ``far`` has no second turn.
    """
    forkserver.prepare(
        central=any(one.placement.inference == "central" for one in programs.values())
    )
    blues: dict[str, Blueprint] = {}
    with tempfile.TemporaryDirectory(prefix="equipoise-measure-") as place:

        def turn(label: str) -> float:
            interrupt.check()
            try:
                if label not in blues:
                    blues[label] = throwaway(programs[label], Path(place) / str(len(blues)))
                found = rate(blues[label], interrupt, turn_s, until=until - MARGIN_S)
            except WorkerFailed:
                interrupt.check()  # an interrupt may have ended a worker before it began
                raise
            tell(f"{label} makes {found:,.0f} steps/s")
            return found

        candidates = {label: partial(turn, label) for label in programs}
        return race(candidates, turns=turns, until=until, far=far, first_s=FIRST_S)


def throwaway(program: Program, place: Path) -> Blueprint:
    """The blueprint of a throw-away run: it saves nothing and never ends."""
    place.mkdir()
    made = hurried(
        alter(program, evaluate_episodes=0, evaluate_every=None, stop_at=None, checkpoint_every=0)
    )
    blue = plan_run(made)
    forward = forward_of(blue, forwards(blue))
    return replace(
        blue,
        directory=str(place),
        capsules=None,
        checkpoint_every=0,
        updates=ENDLESS,
        forward=forward,
    )


def hurried(program: Program) -> Program:
    """The program for a short measurement: replays are small, in memory, and learn at once."""
    policies = dict(program.policies)
    for name, policy in learning(program).items():
        if policy.replay is not None:
            capacity = ROWS if policy.replay.memory else min(policy.replay.capacity, ROWS)
            replay = replace(policy.replay, starts_at=0, capacity=capacity, memory=0, file="")
            chooses = {"random_steps": 0} if "random_steps" in values_of(policy.algorithm) else {}
            policies[name] = replace(
                policy, replay=replay, algorithm=replace(policy.algorithm, **chooses)
            )
    return replace(program, policies=policies)


def rate(blue: Blueprint, interrupt: Interrupt, seconds: float, *, until: float) -> float:
    """Env steps/s between two ends of updates; 0 if there are no two updates before ``until``."""
    runtime = ProcessRuntime(blue)
    try:
        while (now := runtime.stats()).version < 2 or min(now.ticks) < 2:
            if time.monotonic() > until:
                return 0.0
            interrupt.check()
            runtime.poll(SLICE_S)
        version = now.version
        ends: list[tuple[float, int]] = []  # ends of updates: moment, and steps so far
        while not ends or not _enough(ends[-1][0] - ends[0][0], len(ends) - 1, seconds):
            if time.monotonic() > until:
                break
            interrupt.check()
            runtime.poll(SLICE_S)
            if (now := runtime.stats()).version > version:
                version = now.version
                ends.append((time.monotonic(), sum(now.ticks) * blue.program.placement.group_envs))
        if len(ends) < 2:
            return 0.0
        (began, before), (ended, after) = ends[0], ends[-1]
        return (after - before) / (ended - began)
    finally:
        runtime.stop()


def _enough(span_s: float, updates: int, seconds: float) -> bool:
    return span_s >= seconds and (updates >= UPDATES or span_s >= LONGEST_S)
