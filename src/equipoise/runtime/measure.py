"""``--inference auto``: both kinds of inference for some seconds, with the run's envs, networks and learner; then the faster.

What is compared is how many rows of experience the envs give while the learner learns from them, since that is what a run is
for. What was measured, and why, is written into ``run.json``, whose program has the choice itself: a resume asks no more.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from equipoise.runtime import blueprint, forkserver
from equipoise.runtime.process import ProcessRuntime
from equipoise.types import Inference, Program

MEASURE_S = 5.0  # in all
TURNS = 4  # local, central, local, central: what else the machine does changes, and should not decide
WARM_S = 60.0  # at most, for the first rows to come
CLEARLY = 1.05  # central takes more processes: it has to be that much faster
SLICE_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    inference: Inference
    why: str
    steps_per_s: dict[str, float]  # by kind of inference; empty where nothing was measured


def choose(program: Program, *, on: str, tell: Callable[[str], object] = lambda text: None) -> tuple[Program, dict[str, Any]]:
    """The program with the faster inference, and what is to be recorded of the choice. Takes seconds; ``tell`` says so."""
    choice = _fixed(program, on)
    if choice is None:
        tell(f"inference: local and central are measured for {MEASURE_S:.0f} s, besides the time that they take to start")
        choice = _measured(program)
    tell(f"inference: {choice.inference}, since {choice.why}")
    made = replace(program, inference=choice.inference)
    return made, {"inference": {"asked": "auto", "why": choice.why, "steps_per_s": choice.steps_per_s}}


def _fixed(program: Program, on: str) -> Choice | None:
    """Where there is nothing to measure."""
    why = None
    if on == "serial":
        why = "in one thread both do the same work"
    elif program.max_lag == 0:
        why = "with max_lag=0 nothing that is measured may decide what is computed"
    elif not program.actors:
        why = "there are no actors"
    elif len(program.policies) > 1:
        why = "there are several policies"
    return None if why is None else Choice(inference="local", why=why, steps_per_s={})


def _measured(program: Program) -> Choice:
    rates: dict[str, list[float]] = {kind: [] for kind in get_args(Inference)}
    forkserver.prepare(central=True)
    with tempfile.TemporaryDirectory(prefix="equipoise-measure-") as place:
        for turn in range(TURNS):
            kind = get_args(Inference)[turn % 2]
            rates[kind].append(
                _rate(
                    replace(program, inference=kind, evaluate_episodes=0, evaluate_every=None, stop_at=None),
                    Path(place) / str(turn),
                )
            )
    # The better turn of each: what else ran on the machine can only have slowed the others.
    best = {kind: max(found) for kind, found in rates.items()}
    ratio = best["central"] / max(best["local"], 1e-9)
    inference: Inference = "central" if ratio > CLEARLY else "local"
    why = f"central made {best['central']:,.0f} steps/s and local {best['local']:,.0f}"
    if inference == "local" and ratio > 1:
        why += f", and less than {CLEARLY - 1:.0%} more is not worth its processes"
    return Choice(inference=inference, why=why, steps_per_s={kind: round(rate, 1) for kind, rate in best.items()})


def _rate(program: Program, place: Path) -> float:
    """Env steps a second of a run that is thrown away."""
    place.mkdir()
    blue = replace(
        blueprint.blueprint(replace(program, checkpoint_every=0)), directory=str(place / "checkpoints"),
        capsules=None, checkpoint_every=0,
    )  # fmt: skip
    runtime = ProcessRuntime(blue)
    try:
        until = time.monotonic() + WARM_S
        while min(_ticks(runtime)) < 2 and time.monotonic() < until:
            runtime.advance(SLICE_S)
        began, before = time.monotonic(), sum(_ticks(runtime))
        while time.monotonic() < began + MEASURE_S / TURNS:
            runtime.advance(SLICE_S)
        return (sum(_ticks(runtime)) - before) * program.group_envs / (time.monotonic() - began)
    finally:
        runtime.stop()


def _ticks(runtime: ProcessRuntime) -> list[int]:
    """Of each group of envs: how often it was stepped."""
    return [episodes.ticks for episodes in runtime.shared.actors]
