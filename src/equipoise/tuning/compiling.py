"""The costs of ``torch.compile`` for a run and its possible savings, reported before the run
begins; refused if it cannot pay.

| figure | how it is known |
|---|---|
| the compiler's imports | their CPU time, measured in a process that is thrown away |
| compiling | ``TORSO`` and ``LOSS`` times the imports in each process; ``CACHED`` times where an earlier run left all of it |
| what is saved | at most half of the time that the network computes uncompiled, by a timed update and act |
"""  # noqa: E501

from __future__ import annotations

import math
import time
from collections.abc import Callable

from equipoise import phases
from equipoise.cores import usable
from equipoise.nets.compiled import pays
from equipoise.plans.blueprint import Blueprint
from equipoise.plans.plan import plan_run
from equipoise.runtime.session import Interrupt
from equipoise.tuning import updates
from equipoise.tuning.choice import Choice
from equipoise.tuning.updates import Took, Way
from equipoise.types import Program

TORSO, LOSS, CACHED = 6.5, 7.5, 1.5  # measured with torch 2.9: Nature CNN, one thread, g++ 12
GAIN = 2.0  # no compiled code was seen to be faster by more than this factor (docs/guides/gpu.md)
# most seconds of the measurement: imports are also slow on machines on which compiling is slow
BUDGET_S = 60.0


def judged(
    program: Program,
    interrupt: Interrupt,
    *,
    on: str,
    rate: Callable[[Blueprint, Way, Took], float],
    at: int | None,
) -> Choice | None:
    """A sentence on ``placement.compile=true``; None if the network has nothing to compile.

    ``rate``: most steps/s of an update and an act. ``at``: the step of a resume, which is never
    refused, or None. ValueError if compiling costs more than it can save, unless ``max_lag`` is 0.
    """
    blue, place = plan_run(program), program.placement
    if not any(pays(blue.network(name)) for name in blue.learns):
        return None
    phases.say("measuring the start of torch's compiler")
    way = Way(device=place.device, precision=place.precision, threads=place.threads)
    took, wrong = updates.timed(
        blue, [way], interrupt, until=time.monotonic() + BUDGET_S, enough=lambda took: True
    )
    if way not in took:
        return Choice(
            value=True,
            why="it takes a minute or more; it could not be measured: "
            f"{wrong or 'it took too long'}",
        )
    found = took[way]
    acts = bool(program.actors) and place.inference == "local"
    waves = math.ceil(program.actors / usable()) if on == "process" else 1
    first_s, second_s = TORSO * found.compiler_s * waves * acts, LOSS * found.compiler_s
    network_s = (blue.pace.steps(blue.updates) - (at or 0)) / rate(blue, way, found)
    saves_s = (1.0 - 1.0 / GAIN) * network_s
    least_s = CACHED * found.compiler_s if found.cached else first_s + second_s
    if at is None and place.max_lag != 0 and least_s > saves_s:
        raise ValueError(
            "placement.compile: expected a run that it can shorten, got one whose network computes "
            f"for about {network_s:,.0f} s uncompiled: torch.compile takes {least_s:,.0f} s or "
            f"more and saves at most {saves_s:,.0f} s; try placement.compile=false"
        )
    before = f"about {first_s:,.0f} s before the first step and " if acts else ""
    cached = " (less if torch has it from an earlier run)" if found.cached else ""
    return Choice(
        value=True,
        measured={"compiler": round(found.compiler_s, 2), "update": round(found.update_s, 5)},
        unit="s",
        why=f"torch.compile takes {before}about {second_s:,.0f} s before the first update on free "
        f"cores{cached}, and saves at most {saves_s:,.0f} s of the {network_s:,.0f} s that the "
        "network computes uncompiled",
    )
