"""``--inference auto``: measure both kinds of inference for some seconds with the run's envs, networks and learner; take the
faster.

The measure is the rows a second that the envs give while the learner learns from them. The figures and the reason are
written into ``run.json``, and its program holds the choice: a resume does not measure again.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

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

MEASURE_S = 5.0  # seconds in all
TURNS = 4  # local, central, local, central: changing load of the machine should not decide
WARM_S = 60.0  # most seconds until the first two updates, and for the two that a turn needs at least
UPDATES, LONGEST_S = 4, 10.0  # a turn lasts at least so many updates, or so many seconds
SLICE_S = 0.02
ENDLESS = 1 << 40  # updates


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    inference: Inference
    why: str
    steps_per_s: dict[str, float]  # by kind of inference; empty where nothing was measured


def choose(program: Program, *, on: str, tell: Callable[[str], object] = lambda text: None) -> tuple[Program, dict[str, Any]]:
    """Choose the faster inference -> the program with it, and the record of the choice. Takes seconds; ``tell`` says so.

    WorkerFailed where neither works; KeyboardInterrupt, which leaves nothing, where Ctrl-C or SIGTERM ends the measurement.
    """
    choice = _fixed(program, on)
    if choice is None:
        tell(f"inference: local and central are measured for {MEASURE_S:.0f} s in {TURNS} turns, besides their starts")
        with Interrupt() as interrupt:
            choice = _faster(*measured(program, interrupt, tell=tell))
        interrupt.check()
    if choice.inference == "local":
        forkserver.release()
    tell(f"inference: {choice.inference}, since {choice.why}")
    made = alter(program, inference=choice.inference)
    return made, {"inference": {"asked": "auto", "why": choice.why, "steps_per_s": choice.steps_per_s}}


def _fixed(program: Program, on: str) -> Choice | None:
    """The choice where there is nothing to measure."""
    why = None
    if on == "serial":
        why = "in one thread both do the same work"
    elif program.placement.max_lag == 0:
        why = "with max_lag=0 nothing that is measured may decide what is computed"
    else:
        try:
            check(central := alter(program, inference="central"))
            check_processes(central)
        except ValueError as error:
            why = f"central cannot be: {error}"
    return None if why is None else Choice(inference="local", why=why, steps_per_s={})


def measured(
    program: Program,
    interrupt: Interrupt,
    *,
    seconds: float = MEASURE_S,
    turns: int = TURNS,
    tell: Callable[[str], object] = lambda text: None,
) -> tuple[dict[str, list[float]], dict[str, WorkerFailed]]:
    """Measure steps/s of each kind in each turn, 0 where it learned nothing; and the kinds that failed."""
    rates: dict[str, list[float]] = {kind: [] for kind in get_args(Inference)}
    failed: dict[str, WorkerFailed] = {}
    forkserver.prepare(central=True)
    with tempfile.TemporaryDirectory(prefix="equipoise-measure-") as place:
        blues = {}
        for kind in get_args(Inference):
            blues[kind] = _blueprint(alter(program, inference=kind), Path(place) / kind)
            interrupt.check()
        for _ in range(turns // len(rates)):
            for kind, blue in blues.items():
                if kind not in failed:
                    try:
                        rates[kind].append(_rate(blue, interrupt, seconds / turns))
                        tell(f"inference: {kind} makes {rates[kind][-1]:,.0f} steps/s")
                    except WorkerFailed as error:
                        interrupt.check()  # an interrupt may have ended a worker before it began
                        failed[kind] = error
    return rates, failed


def _faster(rates: dict[str, list[float]], failed: dict[str, WorkerFailed]) -> Choice:
    if len(failed) == len(rates):
        raise failed["local"]
    # The better turn of each kind: other load can only have slowed the others.
    best = {kind: 0.0 if kind in failed else max(found) for kind, found in rates.items()}
    if not any(best.values()) and not failed:
        return Choice(inference="local", why=f"neither came to two updates within {WARM_S:.0f} s", steps_per_s=best)
    for kind in (*failed, "central", "local"):
        if not best[kind]:
            gone = f"failed: {failed[kind].reason}" if kind in failed else f"did not come to two updates within {WARM_S:.0f} s"
            other: Inference = "local" if kind == "central" else "central"
            return Choice(inference=other, why=f"{kind} {gone}", steps_per_s=best)
    inference: Inference = "central" if best["central"] > best["local"] else "local"
    why = f"central made {best['central']:,.0f} steps/s and local {best['local']:,.0f}"
    return Choice(inference=inference, why=why, steps_per_s={kind: round(rate, 1) for kind, rate in best.items()})


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
