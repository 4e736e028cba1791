"""``--inference auto`` and ``--learners auto``: measure a setting's values for some seconds with the run's envs, networks and
learners; take the fastest.

The measure is the rows a second that the envs give while they are learned from. The figures and the reason are written into
``run.json``, and its program holds the choice: a resume does not measure again.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch

from equipoise.cores import usable
from equipoise.errors import WorkerFailed
from equipoise.programs.fields import alter
from equipoise.programs.limits import check_processes
from equipoise.programs.refusals import check
from equipoise.run import forward_choice as acting
from equipoise.run.session import Interrupt
from equipoise.runtime import blueprint
from equipoise.runtime.blueprint import Blueprint
from equipoise.runtime.process import forkserver
from equipoise.runtime.process.process import ProcessRuntime
from equipoise.types import Inference, Program

TURN_S, TURNS = 1.25, 2  # seconds of a turn, and turns of each value, in turn: changing load should not decide
WARM_S = 60.0  # most seconds until the first two updates, and for the two that a turn needs at least
UPDATES, LONGEST_S = 4, 10.0  # a turn lasts at least so many updates, or so many seconds
MORE = 1.05  # more learners are taken where they make so many times the rows of fewer
SLICE_S = 0.02
ENDLESS = 1 << 40  # updates


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    value: Any
    why: str
    steps_per_s: dict[str, float]  # by value; empty where nothing was measured


def choose(
    program: Program, setting: str, *, on: str, tell: Callable[[str], object] = lambda text: None
) -> tuple[Program, dict[str, Any]]:
    """Choose the fastest value of ``setting`` -> the program with it, and the record of the choice.

    It takes seconds; ``tell`` says so. ``setting`` is one of ``MEASURED``. WorkerFailed where no value works;
    KeyboardInterrupt, which leaves nothing, where Ctrl-C or SIGTERM ends the measurement.
    """
    values, why = candidates(program, setting, on)
    choice = Choice(value=values[0], why=why, steps_per_s={})
    if len(values) > 1:
        turns, names = TURNS * len(values), ", ".join(map(str, values))
        tell(f"{setting}: {names} are measured for {turns * TURN_S:.0f} s in {turns} turns, besides their starts")
        with Interrupt() as interrupt:
            rates, failed = measured(program, setting, values, interrupt, tell=tell)
            choice = fastest(rates, failed, gain=MORE if setting == "learners" else 1.0)
        interrupt.check()
    made = alter(program, **{setting: choice.value})
    if made.placement.inference == "local":
        forkserver.release()
    tell(f"{setting}: {choice.value}, since {choice.why}")
    return made, {setting: {"asked": "auto", "why": choice.why, "steps_per_s": choice.steps_per_s}}


def candidates(program: Program, setting: str, on: str) -> tuple[list[Any], str]:
    """The values that can be, the usual one first, and why there is no other."""
    wanted: list[Any] = list(MEASURED[setting](program))
    if on == "serial":
        return wanted[:1], "in one thread all do the same work"
    if program.placement.max_lag == 0:
        return wanted[:1], "with max_lag=0 nothing that is measured may decide what is computed"
    found, why = wanted[:1], "this machine has no cores for more"
    for value in wanted[1:]:
        try:
            check(made := alter(program, **{setting: value}))
            check_processes(made)
        except ValueError as error:
            why = f"{value} cannot be: {error}"
        else:
            found.append(value)
    return found, why


def _numbers_of_learners(program: Program) -> list[int]:
    """1, 2, 4, ... up to the number of cores, or of CUDA devices."""
    most = usable() if program.placement.device == "cpu" else torch.cuda.device_count()
    return [1 << n for n in range(most.bit_length())]


MEASURED: dict[str, Callable[[Program], Sequence[Any]]] = {
    "inference": lambda program: get_args(Inference),
    "learners": _numbers_of_learners,
}


def measured(
    program: Program,
    setting: str,
    values: Sequence[Any],
    interrupt: Interrupt,
    *,
    turn_s: float = TURN_S,
    turns: int = TURNS,
    tell: Callable[[str], object] = lambda text: None,
) -> tuple[dict[Any, list[float]], dict[Any, WorkerFailed]]:
    """Measure steps/s of each value in each turn, 0 where it learned nothing; and the values that failed."""
    rates: dict[Any, list[float]] = {value: [] for value in values}
    failed: dict[Any, WorkerFailed] = {}
    forkserver.prepare(central="central" in (*values, program.placement.inference))
    with tempfile.TemporaryDirectory(prefix="equipoise-measure-") as place:
        blues = {}
        for value in values:
            blues[value] = _blueprint(alter(program, **{setting: value}), Path(place) / str(value))
            interrupt.check()
        for _ in range(turns):
            for value, blue in blues.items():
                if value not in failed:
                    try:
                        rates[value].append(_rate(blue, interrupt, turn_s))
                        tell(f"{setting}: {value} makes {rates[value][-1]:,.0f} steps/s")
                    except WorkerFailed as error:
                        interrupt.check()  # an interrupt may have ended a worker before it began
                        failed[value] = error
    return rates, failed


def fastest(rates: dict[Any, list[float]], failed: dict[Any, WorkerFailed], *, gain: float = 1.0) -> Choice:
    """The value of the highest rate; a later one is taken where it has more than ``gain`` times that of the one before."""
    usual = next(iter(rates))
    if len(failed) == len(rates):
        raise failed[usual]
    # The better turn of each value: other load can only have slowed the others.
    best = {value: 0.0 if value in failed else max(found) for value, found in rates.items()}
    said = {str(value): round(rate, 1) for value, rate in best.items()}
    late = f"did not come to two updates within {WARM_S:.0f} s"
    if not any(best.values()) and not failed:
        return Choice(value=usual, why=f"each of them {late}", steps_per_s=said)
    gone = [f"{value} failed: {error.reason}" for value, error in failed.items()]
    gone += [f"{value} {late}" for value, rate in best.items() if not rate and value not in failed]
    taken = next((value for value, rate in best.items() if rate), next(value for value in rates if value not in failed))
    for value, rate in best.items():
        if rate > gain * best[taken]:
            taken = value
    made = [f"{value} made {rate:,.0f} steps/s" for value, rate in best.items() if rate]
    return Choice(value=taken, why=", ".join(gone or made), steps_per_s=said)


def _blueprint(program: Program, place: Path) -> Blueprint:
    """The blueprint of a throw-away run: it saves nothing and never ends."""
    place.mkdir()
    made = alter(program, evaluate_episodes=0, evaluate_every=None, stop_at=None, checkpoint_every=0)
    blue = blueprint.blueprint(made)
    forward = acting.forwards(acting.chosen(blue))
    return replace(blue, directory=str(place), capsules=None, checkpoint_every=0, updates=ENDLESS, forward=forward)


def _rate(blue: Blueprint, interrupt: Interrupt, seconds: float) -> float:
    """Measure env steps a second from the end of an update to the end of another, since acting and learning may take turns;
    0 where there are no updates.
    """
    runtime = ProcessRuntime(blue)
    try:
        until = time.monotonic() + WARM_S
        while (now := runtime.stats()).version < 2 or min(now.ticks) < 2:
            if time.monotonic() > until:
                return 0.0
            interrupt.check()
            runtime.poll(SLICE_S)
        version = now.version
        ends: list[tuple[float, int]] = []  # ends of updates: moment, and steps so far
        until = time.monotonic() + WARM_S
        while not ends or not _enough(ends[-1][0] - ends[0][0], len(ends) - 1, seconds):
            if time.monotonic() > until:
                return 0.0
            interrupt.check()
            runtime.poll(SLICE_S)
            if (now := runtime.stats()).version > version:
                version = now.version
                ends.append((time.monotonic(), sum(now.ticks) * blue.program.placement.group_envs))
        (began, before), (ended, after) = ends[0], ends[-1]
        return (after - before) / (ended - began)
    finally:
        runtime.stop()


def _enough(span_s: float, updates: int, seconds: float) -> bool:
    return span_s >= seconds and (updates >= UPDATES or span_s >= LONGEST_S)
