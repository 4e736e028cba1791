"""Choices by measurement: the values of settings that are ``auto``.

A setting of the placement may be ``auto`` (``AUTO`` in its annotation); ``placement.auto`` names
the settings still to be chosen. ``settled`` measures them before a run begins, for ``BUDGET_S`` in
all:

1. In lockstep, on one thread and for small networks nothing is measured: the usual value is taken.
2. The learner's update alone is timed by device, precision and threads (``updates.py``). If no way
   is clearly faster than the usual one, that is taken.
3. The few ways that are left, and the values of every other setting, are measured as whole runs in
   turns (``runs.py``).

The most usual of values that are near each other is taken, so that noise does not decide. The run's
record has the choices and their reasons (``choice.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, get_args

import torch

from equipoise import phases
from equipoise.cores import usable
from equipoise.facts import values_of
from equipoise.plans.blueprint import Blueprint
from equipoise.plans.plan import plan_run
from equipoise.programs.fields import alter
from equipoise.programs.limits import check_devices, check_processes
from equipoise.programs.refusals import check
from equipoise.runtime.process import forkserver
from equipoise.runtime.session import Interrupt
from equipoise.tuning import compiling, runs, text_placement, updates
from equipoise.tuning.choice import Choice, record
from equipoise.tuning.race import Race, most_usual
from equipoise.tuning.updates import Took, Way
from equipoise.types import PRECISIONS, Inference, Program, learning

BUDGET_S = 30.0  # the most seconds for all settings of a run together
SHARE = 0.1  # the largest part of the run's time if you did not request a measurement
SHORT_S = 20.0  # an estimated length of a run for which nothing more is measured
TIE = 1.05  # of whole runs: a way that is less than this factor faster counts as equal
ALONE = 1.1  # the same of updates alone, which show less
# whole runs are made of at most MOST ways, within this factor of the best estimate
WITHIN, MOST = 1.3, 3

WAYS = ("device", "precision", "threads")  # chosen together
GROUPS = (WAYS, ("learners",), ("inference",), ("actors",), ("envs_per_actor",))
# The real defaults: a program that leaves ``inference`` open is built as central, so that its
# settings are accepted.
USUAL = {"inference": "local"}
COMPILE = "compile"  # not chosen, but judged
DEFAULT = ("precision", "threads")  # measured if no setting is given

Tell = Callable[[str], object]
T = TypeVar("T")


def usual(program: Program) -> Program:
    """The program with the usual value of everything that is still to be chosen."""
    values = {name: value for name, value in USUAL.items() if name in program.placement.auto}
    return alter(program, **values, auto=())


def settled(
    program: Program,
    *,
    on: str,
    asked: Collection[str] = (),
    tell: Tell = lambda text: None,
    at: int | None = None,
    known: Collection[str] = (),
) -> tuple[Program, dict[str, dict[str, Any]]]:
    """Choose what the program leaves open -> the program with it, and the record of the choices.

    ``asked``: settings that the user gave as ``auto``, which have all of ``BUDGET_S`` and are
    reported. ``at``: the step that a resume goes on from. ``known``: earlier measurements.
    ValueError if torch.compile cannot pay (``compiling.py``), WorkerFailed if no value works,
    KeyboardInterrupt if Ctrl-C or SIGTERM ends the measurement.
    """
    base, names, found = usual(program), program.placement.auto, dict[str, Choice]()
    if text_placement.KEY in names:  # with a task it is the only one
        with Interrupt() as interrupt:
            base, found = text_placement.placed(base, on=on, interrupt=interrupt, tell=tell)
        interrupt.check()
    elif why := _fixed(base, on):
        found = {name: Choice(value=values_of(base.placement)[name], why=why) for name in names}
    elif names:
        with Interrupt() as interrupt:
            base, found = _Search(base, names, on, asked, interrupt, tell).run()
        interrupt.check()
    if base.placement.compile and not base.outside and COMPILE not in known:
        with Interrupt() as interrupt:
            judged = compiling.judged(base, interrupt, on=on, rate=bound, at=at)
        interrupt.check()
        if judged is not None:
            found[COMPILE] = judged
            tell(f"{COMPILE}: {judged.why}")
    if found.keys() & USUAL and base.placement.inference == "local":
        forkserver.release()
    for name, choice in found.items():
        if name not in (COMPILE, text_placement.KEY) and (choice.measured or name in asked):
            tell(f"{name}: {choice}")
    if base != alter(program, auto=()):
        check(base)
    return base, record(found)


def _fixed(program: Program, on: str) -> str:
    """The reason why nothing is measured; "" if it may be."""
    if on == "serial":
        return "in one thread nothing is measured"
    if program.placement.max_lag == 0:
        return "with max_lag=0 nothing that is measured may decide what is computed"
    if program.outside:
        return "worlds outside set the pace"
    if program.placement.compile:
        return "torch.compile takes longer than a measurement may"
    return ""


class _Search:
    """The measurements of one program, within one budget."""

    def __init__(
        self,
        program: Program,
        names: Sequence[str],
        on: str,
        asked: Collection[str],
        interrupt: Interrupt,
        tell: Tell,
    ) -> None:
        self._program, self._names, self._on = program, names, on
        self._interrupt, self._tell = interrupt, tell
        self._until = time.monotonic() + BUDGET_S
        self._patient = any(name in asked or name not in DEFAULT for name in names)

    def run(self) -> tuple[Program, dict[str, Choice]]:
        found: dict[str, Choice] = {}
        groups = [
            names for group in GROUPS if (names := [name for name in group if name in self._names])
        ]
        for done, names in enumerate(groups):
            left = len(groups) - done
            until = time.monotonic() + (self._until - time.monotonic()) / left
            chosen = (
                self._ways(names, until)
                if names[0] in WAYS
                else {names[0]: self._values(names[0], until)}
            )
            self._program = variant(
                self._program, **{name: choice.value for name, choice in chosen.items()}
            )
            found |= chosen
        return self._program, found

    # ---------------------------------------------------------------- device, precision and threads

    def _ways(self, names: Sequence[str], until: float) -> dict[str, Choice]:
        place = self._program.placement
        first = Way(device=place.device, precision=place.precision, threads=place.threads)
        blue = plan_run(self._program)

        def all_of(way: Way, **rest: Any) -> dict[str, Choice]:
            return {name: Choice(value=values_of(way)[name], **rest) for name in names}

        if "device" not in names and all(
            updates.is_small(blue.network(name)) for name in blue.learns
        ):
            return all_of(first, why="the network has no convolution and no wide layer")
        ways = ways_of(self._program, names)
        if len(ways) == 1:
            return all_of(first, why="nothing else can be on this machine")
        phases.say(f"measuring {' and '.join(names)} by the learner's updates")

        def is_short(took: Took) -> bool:
            return not self._patient and took.update_s * blue.updates < SHORT_S

        # if other load has the cores, many threads take for ever
        guessed = sorted(ways, key=lambda way: way.threads)
        took, wrong = updates.timed(blue, guessed, self._interrupt, until=until, enough=is_short)
        if wrong:
            self._tell(f"warning: {' and '.join(names)}: an update could not be measured: {wrong}")
            return all_of(first, why=f"an update could not be measured: {wrong}")
        if first not in took:
            return all_of(first, why="no update was over in time")
        if is_short(took[first]):
            return all_of(
                first,
                why=f"the run takes about {took[first].update_s * blue.updates:.0f} s, too short "
                "for a choice",
            )
        late = tuple(str(way) for way in ways if way not in took)
        alone = {way: bound(blue, way, one) for way, one in took.items()}
        taken = shortlist(alone, ways)
        seconds = {str(way): round(one.update_s, 5) for way, one in took.items()}
        by_update: dict[str, Any] = {"measured": seconds, "unit": "s an update", "left_out": late}
        if len(taken) == 1:
            return all_of(taken[0], why=alone_said(took, taken[0], first), **by_update)
        if not self._patient:
            until = min(until, time.monotonic() + SHARE * took[first].update_s * blue.updates)
        if (
            self._on == "ray"
            or not self._program.actors
            or until - time.monotonic() < runs.FIRST_S * len(taken)
        ):
            quickest = most_usual(alone, ways, tie=ALONE)
            return all_of(quickest, why=alone_said(took, quickest, first), **by_update)
        race = self._raced({str(way): way.of(self._program) for way in taken}, names, until)
        if len(race.failed) == len(taken):
            raise race.failed[str(taken[0])]
        if not race.best or (len(race.best) == 1 and race.left_out):  # nothing else ran
            alive = {way: alone[way] for way in taken if str(way) not in race.failed}
            quickest = most_usual(alive, ways, tie=ALONE)
            said = f"{alone_said(took, quickest, first)}; {runs.outcome(race)}"
            return all_of(quickest, why=said, **by_update | {"left_out": (*late, *race.left_out)})
        label = most_usual(race.best, [str(way) for way in ways], tie=TIE)
        return all_of(
            next(way for way in ways if str(way) == label),
            why=runs.outcome(race),
            measured=_rounded(race.best),
            unit="steps/s",
            left_out=(*late, *race.left_out),
        )

    # ------------------------------------------------------------------------------- other settings

    def _values(self, name: str, until: float) -> Choice:
        """Choose one setting by whole runs."""
        values, why = candidates(self._program, name, self._on)
        if len(values) == 1:
            return Choice(value=values[0], why=why)
        race = self._raced(
            {str(value): variant(self._program, **{name: value}) for value in values}, [name], until
        )
        if len(race.failed) == len(values):
            raise race.failed[str(values[0])]
        return taken(race, values)

    def _raced(self, programs: Mapping[str, Program], names: Sequence[str], until: float) -> Race:
        self._tell(
            f"{' and '.join(names)}: {', '.join(programs)} are measured as whole runs in turns, "
            f"for {max(until - time.monotonic(), 0.0):.0f} s at most"
        )
        what = " and ".join(names)
        return runs.raced(
            programs, self._interrupt, until=until, tell=lambda text: self._tell(f"{what}: {text}")
        )


def taken(race: Race, values: Sequence[object]) -> Choice:
    """The value that a race decides for; the usual one, which is the first, if none learned."""
    by_label, best = {str(value): value for value in values}, race.best
    alive = [str(value) for value in values if str(value) not in race.failed]
    label = most_usual(best, list(by_label), tie=TIE) if best else alive[0]
    return Choice(
        value=by_label[label],
        why=runs.outcome(race),
        measured=_rounded(best),
        unit="steps/s",
        left_out=tuple(race.left_out),
    )


def _rounded(rates: Mapping[str, float]) -> dict[str, float]:
    return {label: round(rate, 1) for label, rate in rates.items()}


# ------------------------------------------------------------------------ which are tried and taken


def alone_said(took: Mapping[Way, Took], taken: Way, first: Way) -> str:
    """The settings that updates alone decide, in words."""
    if taken == first:
        return (
            f"an update takes {took[first].update_s * 1e3:,.1f} ms, and no other way is over "
            f"{ALONE - 1:.0%} faster"
        )
    return (
        f"an update takes {took[taken].update_s * 1e3:,.1f} ms with it, and "
        f"{took[first].update_s * 1e3:,.1f} ms in {first}"
    )


def shortlist(alone: Mapping[Way, float], ways: Sequence[Way]) -> list[Way]:
    """The ways that are worth whole runs, the best guess first; one if the updates alone decide.

    ``alone``: a bound of steps/s by the update alone; ``ways``: from the most usual on.
    """
    best = max(alone.values())
    if ways[0] in alone and alone[ways[0]] * ALONE >= best:
        return [ways[0]]
    close = [way for way in ways if way in alone and alone[way] * WITHIN >= best]
    return sorted(close, key=lambda way: -alone[way])[:MOST]


def bound(blue: Blueprint, way: Way, took: Took) -> float:
    """Steps/s of envs that cost nothing: as learners, actors and the cores allow."""
    place, rows = blue.program.placement, blue.pace.rows / blue.pace.updates
    learning_s, acting_s = took.update_s / rows, took.act_s / place.envs_per_actor
    busy = place.learners * (way.threads if way.device == "cpu" else 1) * learning_s + acting_s
    acting = max(blue.program.actors, 1) / acting_s if acting_s else float("inf")
    return min(1.0 / learning_s, acting, usable() / busy)


def ways_of(program: Program, names: Collection[str]) -> list[Way]:
    """The ways to compute that can be on this machine, from the most usual on."""
    place = program.placement
    devices = (
        ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
        if "device" in names
        else [place.device]
    )
    most = max(usable() // place.learners, 1)
    found = []
    for device in devices:
        threads = (
            [1 << n for n in range(most.bit_length())]
            if "threads" in names and device == "cpu"
            else [place.threads]
        )
        precisions = (
            PRECISIONS[device.partition(":")[0]] if "precision" in names else [place.precision]
        )
        for precision in precisions:
            for number in threads:
                way = Way(device=device, precision=precision, threads=number)
                if not _problem(way.of(program)):
                    found.append(way)
    return found


def candidates(program: Program, name: str, on: str) -> tuple[list[object], str]:
    """The values that a setting can have, the usual one first, and why there is no other."""
    usual_one, *others = VALUES[name](program)
    if on == "ray" and name in ("actors", "envs_per_actor"):
        return [usual_one], "over several machines it is not measured"
    found, why = [usual_one], "this machine has no cores for more"
    for value in others:
        try:
            made = variant(program, **{name: value})
        except ValueError as error:
            why = f"{value} cannot be: {error}"
            continue
        if problem := _problem(made):
            why = f"{value} cannot be: {problem}"
        else:
            found.append(value)
    return found, why


def _problem(program: Program) -> str:
    """The reason why a program cannot run here; "" if it can."""
    place = program.placement
    try:
        check(program)
        check_processes(program)
        check_devices(place)
    except ValueError as error:
        return str(error)
    streams = program.actors * place.envs_per_actor
    for policy in learning(program).values():
        if (
            policy.replay is None
            and place.max_lag is not None
            and streams > policy.batch * (place.max_lag + 1)
        ):
            return f"some of {streams} envs would always wait, since a batch has {policy.batch}"
    return ""


def variant(program: Program, **changes: object) -> Program:
    """The program with another placement and as many updates a row; ValueError for a fraction."""
    made = alter(program, **changes)
    before, after = (one.actors * one.placement.envs_per_actor for one in (program, made))
    if before == after:
        return made
    policies = dict(made.policies)
    for name, policy in learning(made).items():
        if policy.replay is not None:
            if policy.replay.updates * after % before:
                raise ValueError(
                    f"{policy.replay.updates} updates a round of {before} envs are no whole number "
                    f"of {after}"
                )
            scaled = replace(policy.replay, updates=policy.replay.updates * after // before)
            policies[name] = replace(policy, replay=scaled)
    return replace(made, policies=policies)


def _learners(program: Program) -> list[int]:
    """1, 2, 4, ... up to the number of cores, or of CUDA devices."""
    most = usable() if program.placement.device == "cpu" else torch.cuda.device_count()
    return [1 << n for n in range(most.bit_length())]


def _around(number: int) -> list[int]:
    """The number, and the values to try next to it, the best guess first."""
    return [
        number,
        2 * number,
        *([number // 2] if number > 1 and number % 2 == 0 else []),
        4 * number,
    ]


VALUES: dict[str, Callable[[Program], Sequence[object]]] = {
    "inference": lambda program: get_args(Inference),
    "learners": _learners,
    "actors": lambda program: _around(program.placement.actors),
    "envs_per_actor": lambda program: _around(program.placement.envs_per_actor),
}
