"""The placement of generators and learners of a run on text, for ``placement.text=auto``.

1. Short runs measure the costs (``text_costs.py``): a run of a plan whose workers take turns, one
   of a plan whose generators draw at the same time, and one of a plan that also learns meanwhile.
   Workers that are busy at the same time share the caches and the memory of the machine.
2. The forecast of every plan follows from the costs of the run that is like it
   (``balance/placement``).
3. The plans that are near the best are measured as whole runs in turns.

A plan has at most the ``max_lag`` of the program, and the learners that it has.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from equipoise import phases
from equipoise.balance.placement.choice import forecast
from equipoise.balance.placement.costs import MOST_LAG, Costs, Forecast, Plan
from equipoise.cores import usable
from equipoise.errors import WorkerFailed
from equipoise.programs.fields import alter
from equipoise.programs.refusals import check
from equipoise.runtime.process import forkserver
from equipoise.runtime.session import Interrupt
from equipoise.sources.text import texts_of
from equipoise.tuning import runs
from equipoise.tuning.choice import Choice
from equipoise.tuning.race import Race, most_usual
from equipoise.tuning.text_costs import measured
from equipoise.types import Program, learning

COSTS_S = 300.0  # the most seconds of the runs that measure costs; most take ten each
RUNS_S = 60.0  # the most seconds of whole runs
# plans within this factor of the best forecast are measured as whole runs, at most MOST of them
WITHIN, MOST = 1.2, 3
TIE = 1.03  # a whole run that is less than this factor faster counts as equal
GENERATORS = 16  # most generators of a plan
UNBOUNDED = 2  # the largest lag of a plan if the program sets no limit

Tell = Callable[[str], object]
KEY = "text"  # of the record of choices
# the other workers that are busy while a generator draws; alone: there is one generator for each
# learner, and the two take turns
Neighbours = Literal["alone", "generators", "learners"]


@dataclass(frozen=True, slots=True, eq=False)  # a program cannot be hashed
class Candidate:
    """A program, and the plan that it is."""

    program: Program
    plan: Plan

    @property
    def name(self) -> str:
        """The plan, in the words of the settings."""
        if self.plan.kind == "together":
            return "together"
        number = self.plan.generate
        return (
            f"apart, {number} generator{'s' if number > 1 else ''} at max_lag {self.plan.max_lag}"
        )


def placed(
    program: Program, *, on: str, interrupt: Interrupt, tell: Tell
) -> tuple[Program, dict[str, Choice]]:
    """Choose who generates -> the program with it, and the record of the choice.

    ``program``: with ``placement.text=apart``. WorkerFailed if no plan works.
    """
    if on != "process":
        where = "in one thread" if on == "serial" else "over several machines"
        return program, {KEY: Choice(value="apart", why=f"{where} nothing is measured")}
    among = candidates(program)
    phases.say("measuring who generates")
    tell(f"placement: {len(among)} plans are compared by short runs")
    forkserver.prepare(central=False)
    costs = _measured(among, interrupt, time.monotonic() + COSTS_S)
    told = forecasts(among, costs)
    if not told:
        why = f"too few updates were over in {COSTS_S:.0f} s, so no plan could be compared"
        tell(f"placement: apart, because {why}")
        return program, {KEY: Choice(value="apart", why=why)}
    near = shortlist(told)
    race = None
    if len(near) > 1:
        race = runs.raced(
            {one.name: one.program for one in near},
            interrupt,
            until=time.monotonic() + RUNS_S,
            far=WITHIN,
        )
    chosen, why = decided(near, told, race)
    seconds = {f"{one.name}, forecast": round(told[one].seconds, 4) for one in told}
    if race is not None:
        samples = batch_of(program)
        seconds |= {
            f"{name}, measured": round(samples / rate, 4)
            for name, rate in race.best.items()
            if rate
        }
    tell(f"placement: {chosen.name}, because {why}")
    choice = Choice(
        value=chosen.name,
        why=why,
        measured=seconds,
        unit="s an update",
        left_out=tuple(race.left_out) if race is not None else (),
    )
    return chosen.program, {KEY: choice}


def candidates(program: Program) -> list[Candidate]:
    """The plans that this machine has cores for, the most usual first."""
    place, cores, found = program.placement, usable(), list[Candidate]()
    learners = place.learners
    own: list[tuple[dict[str, object], Plan]] = [
        (
            {"placement": "together", "max_lag": 0},
            Plan(kind="together", generate=learners, learn=learners),
        )
    ]
    most = UNBOUNDED if place.max_lag is None else min(place.max_lag, MOST_LAG)
    groups = batch_of(program) // place.group_envs
    for lag in sorted({0, min(1, most), most}):
        # without lag generators and learners take turns, so each may have all cores
        free = cores if lag == 0 else cores - learners
        most_generators = min(max(free, learners), GENERATORS, groups * (lag + 1))
        for number in range(learners, most_generators + 1, learners):
            plan = Plan(kind="apart", generate=number, learn=learners, max_lag=lag)
            own.append(({"placement": "apart", "max_lag": lag, "actors": number}, plan))
    for changes, plan in own:
        made = alter(program, **changes)
        try:
            check(made)
        except ValueError:
            continue  # such as together with parts of the parameters
        found.append(Candidate(made, plan))
    return found


def batch_of(program: Program) -> int:
    """Samples of an update."""
    return max(policy.batch for policy in learning(program).values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The costs by the neighbours; None: no such plan, no time for an update, or it failed."""

    alone: Costs | None = None
    generators: Costs | None = None
    learners: Costs | None = None
    failed: Collection[Neighbours] = ()

    def of(self, plan: Plan) -> Costs | None:
        """The costs of a plan; None if nothing like it was measured."""
        kind = neighbours(plan)
        found: Costs | None = getattr(self, kind)
        if found is None and kind == "generators" and kind not in self.failed:
            return self.alone
        if found is None or self.alone is None:
            return found
        # only a learner that generates shows how long rewards take
        return replace(found, reward_s=self.alone.reward_s)


def neighbours(plan: Plan) -> Neighbours:
    """The other workers that are busy while a generator of the plan draws."""
    if plan.max_lag:
        return "learners"
    return "generators" if plan.generate > plan.learn else "alone"


def _measured(among: Sequence[Candidate], interrupt: Interrupt, until: float) -> Measured:
    """Measure a plan for each kind of neighbours; WorkerFailed if no plan works."""
    found, failed = dict[Neighbours, Costs | None](), dict[Neighbours, WorkerFailed]()
    wanted = {neighbours(one.plan): one for one in among}  # the last one has the most generators
    if "alone" in wanted:  # the first one, a learner that generates, shows how long rewards take
        wanted["alone"] = next(one for one in among if neighbours(one.plan) == "alone")
    with tempfile.TemporaryDirectory(prefix="equipoise-measure-") as place:
        for number, (name, one) in enumerate(wanted.items()):
            # as much for each run
            end = time.monotonic() + (until - time.monotonic()) / (len(wanted) - number)
            try:
                blue = runs.throwaway(one.program, Path(place) / name)
                found[name] = measured(blue, interrupt, until=end)
            except WorkerFailed as error:
                interrupt.check()
                failed[name] = error
    if len(failed) == len(wanted):
        raise next(iter(failed.values()))
    return Measured(**found, failed=tuple(failed))


def forecasts(among: Sequence[Candidate], costs: Measured) -> dict[Candidate, Forecast]:
    """The forecast of each plan whose costs were measured."""
    found = {}
    for one in among:
        if (of := costs.of(one.plan)) is None:
            continue
        at_once = max(texts_of(one.program).at_once(), of.group)
        switch_s = of.switch_s if one.plan.kind == "together" else 0.0
        found[one] = forecast(replace(of, at_once=at_once, switch_s=switch_s), one.plan)
    return found


def shortlist(told: Mapping[Candidate, Forecast]) -> list[Candidate]:
    """The plans that are worth whole runs, the most usual first; one if the forecasts decide."""
    best = min(one.seconds for one in told.values())
    near = [one for one in told if told[one].seconds <= WITHIN * best]
    fastest = sorted(near, key=lambda one: told[one].seconds)[:MOST]
    return [one for one in near if one in fastest]


def decided(
    near: Sequence[Candidate], told: Mapping[Candidate, Forecast], race: Race | None
) -> tuple[Candidate, str]:
    """The plan that is taken, and why, in words. ``race``: whole runs of ``near``; None: the
    forecast left one plan.

    A plan that there was no time to run counts by its forecast, times what the others took against
    theirs.
    """
    ran = {name: rate for name, rate in race.best.items() if rate} if race is not None else {}
    if not ran:
        chosen = min(near, key=lambda one: told[one].seconds)
        rest = sorted((one.seconds, of.name) for of, one in told.items() if of is not chosen)
        against = f", and {rest[0][1]} {rest[0][0]:.3g} s" if rest else ", and no other plan can be"
        mine = told[chosen]
        return chosen, (
            f"by the forecast it takes {mine.seconds:.3g} s an update, most of it for "
            f"{mine.bound}{against}"
        )
    samples, failed = batch_of(near[0].program), race.failed if race is not None else {}
    took = {one: samples / ran[one.name] for one in near if one.name in ran}
    slower = sum(took[one] / told[one].seconds for one in took) / len(took)
    guessed = [one for one in near if one not in took and one.name not in failed]
    took |= {one: told[one].seconds * slower for one in guessed}
    chosen = most_usual({one: 1 / seconds for one, seconds in took.items()}, near, tie=TIE)
    said = {
        one: f"{seconds:.3g} s{' by the forecast' if one in guessed else ''}"
        for one, seconds in took.items()
    }
    others = [f"{one.name} {said[one]}" for one in took if one is not chosen]
    return chosen, ", and ".join([f"it takes {said[chosen]} an update", *others])
