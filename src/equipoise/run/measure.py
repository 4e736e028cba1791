"""Whole runs, measured for some seconds and thrown away: the run's own envs, networks and learners,
in turns.

The measure is the rows a second that the envs give while they are learned from.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from equipoise.errors import WorkerFailed
from equipoise.plans.blueprint import Blueprint
from equipoise.plans.plan import plan_run
from equipoise.programs.fields import alter
from equipoise.run import choice
from equipoise.run.session import Interrupt
from equipoise.runtime.process import forkserver
from equipoise.runtime.process.process import ProcessRuntime
from equipoise.types import Program, learning

TURN_S, TURNS = 1.25, 2  # seconds of a turn, and turns of each run: changing load should not decide
UPDATES, LONGEST_S = 4, 10.0  # a turn lasts at least so many updates, or so many seconds
FAR = 1.3  # a run that the fastest one beats by more has no second turn
FIRST_S, MARGIN_S = 5.0, 1.0  # what the first turn is taken to cost; for the end of the last one
SLICE_S = 0.02
ENDLESS = 1 << 40  # updates
ROWS = 50_000  # of a replay, at most

Tell = Callable[[str], object]


@dataclass(slots=True, kw_only=True)
class Raced:
    """What came of some runs, by their labels."""

    # steps/s of each turn; 0 where there were no two updates
    rates: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, WorkerFailed] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)  # runs that there was no time to try

    @property
    def best(self) -> dict[str, float]:
        """Steps/s of each run that learned: its better turn, since other load can only have slowed
        the others.
        """
        found = {
            label: max(rates)
            for label, rates in self.rates.items()
            if label not in self.failed and rates
        }
        return {label: rate for label, rate in found.items() if rate}

    @property
    def said(self) -> str:
        """What came of each, in words."""
        gone = [f"{label} failed: {error.reason}" for label, error in self.failed.items()]
        gone += [
            f"{label} did not come to two updates in time"
            for label, rates in self.rates.items()
            if rates and not max(rates) and label not in self.failed
        ]
        made = [f"{label} made {rate:,.0f} steps/s" for label, rate in self.best.items()]
        late = [f"there was no time to try {', '.join(self.left_out)}"] if self.left_out else []
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
) -> Raced:
    """Measure runs in turns, the first one first, until ``until`` (``time.monotonic``): what no
    longer fits is not tried.

    A run that the fastest one beats by more than ``far`` has no second turn.
    """
    forkserver.prepare(
        central=any(one.placement.inference == "central" for one in programs.values())
    )
    race, clock = Raced(rates={label: [] for label in programs}), _Clock(until)
    with tempfile.TemporaryDirectory(prefix="equipoise-measure-") as place:
        blues: dict[str, Blueprint] = {}
        for turn in range(turns):
            for number, label in enumerate(_still(race, programs, turn, far)):
                if not clock.fits():
                    race.left_out += [label] if not turn else []
                    continue
                with clock:
                    interrupt.check()
                    try:
                        if label not in blues:
                            blues[label] = _blueprint(programs[label], Path(place) / str(number))
                        race.rates[label].append(
                            rate(blues[label], interrupt, turn_s, until=until - MARGIN_S)
                        )
                        tell(f"{label} makes {race.rates[label][-1]:,.0f} steps/s")
                    except WorkerFailed as error:
                        interrupt.check()  # an interrupt may have ended a worker before it began
                        race.failed[label] = error
    return race


def _still(race: Raced, programs: Mapping[str, Program], turn: int, far: float) -> Sequence[str]:
    """The runs that have a turn: at first all, then those that may still be the fastest."""
    if turn == 0:
        return list(programs)
    best = race.best
    close = [label for label, made in best.items() if made * far >= max(best.values())]
    return close if len(close) > 1 else []


class _Clock:
    """The time that is left, and what a turn costs: as much as the dearest so far."""

    def __init__(self, until: float) -> None:
        self._until, self._cost_s, self._began = until, FIRST_S, 0.0
        self._turns = 0

    def fits(self) -> bool:
        return time.monotonic() + self._cost_s <= self._until

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        took = time.monotonic() - self._began
        self._cost_s, self._turns = max(took, self._cost_s if self._turns else 0.0), self._turns + 1


def _blueprint(program: Program, place: Path) -> Blueprint:
    """The blueprint of a throw-away run: it saves nothing and never ends."""
    place.mkdir()
    made = hurried(
        alter(program, evaluate_episodes=0, evaluate_every=None, stop_at=None, checkpoint_every=0)
    )
    blue = plan_run(made)
    forward = choice.forward_of(blue, choice.forwards(blue))
    return replace(
        blue,
        directory=str(place),
        capsules=None,
        checkpoint_every=0,
        updates=ENDLESS,
        forward=forward,
    )


def hurried(program: Program) -> Program:
    """The program whose replays are learned from at once, hold few rows, and lie in memory; its
    policies choose all actions.
    """
    policies = dict(program.policies)
    for name, policy in learning(program).items():
        if policy.replay is not None:
            capacity = ROWS if policy.replay.memory else min(policy.replay.capacity, ROWS)
            replay = replace(policy.replay, starts_at=0, capacity=capacity, memory=0, file="")
            chooses = {"random_steps": 0} if hasattr(policy.algorithm, "random_steps") else {}
            policies[name] = replace(
                policy, replay=replay, algorithm=replace(policy.algorithm, **chooses)
            )
    return replace(program, policies=policies)


def rate(blue: Blueprint, interrupt: Interrupt, seconds: float, *, until: float) -> float:
    """Measure env steps a second from the end of an update to the end of another, since acting and
    learning may take turns; 0 where there are no two updates before ``until``.
    """
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
