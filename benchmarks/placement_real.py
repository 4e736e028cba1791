"""Forecasts of real runs on text on this machine, and the plan that ``--placement auto`` takes.

    PYTHONPATH=src:benchmarks python benchmarks/placement_real.py
    PYTHONPATH=src:benchmarks python benchmarks/placement_real.py --shape "long answers" --turns 1
    PYTHONPATH=src:benchmarks python benchmarks/placement_real.py --elastic --turns 3

Five shapes of prompts and answers. Each is first given to ``placement.text=auto`` (costs by short
runs, forecasts, whole runs of the plans that are near the best). Then every plan is run in turns,
and the forecasts and the choice are compared with these runs. At most 140 s a shape; on two cores
about nine minutes in all. The weights never change (a learning rate of 0), so that lengths stay.
Other load on the machine makes the figures worthless.

With ``--elastic``: runs whose learner is lent while it waits (``placement.text=elastic``) next to
runs with placement apart. Each has one generator. The devices that draw are simulated, so that they
take the same time on any machine. The learner waits nearly always, most of the time, or hardly.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import equipoise
from equipoise.balance.shares import add, less
from equipoise.programs.fields import alter
from equipoise.runtime.process import forkserver
from equipoise.runtime.process.process import ProcessRuntime
from equipoise.runtime.session import Interrupt
from equipoise.tuning import runs
from equipoise.tuning.choices import usual
from equipoise.tuning.text_placement import KEY, batch_of, candidates, placed
from equipoise.types import Program

TRUTH_S = 80.0  # most seconds of the runs that a shape is compared with
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 "
MODEL = (
    "llama:hidden_size=128,intermediate_size=256,num_hidden_layers=3,num_attention_heads=4,"
    "num_key_value_heads=4"
)


@dataclass(frozen=True)
class Shape:
    """Tokens of prompts and the longest answers, and the samples of an update."""

    prompt: int
    answer: int
    batch: int = 64


SHAPES = {
    "short prompts and answers": Shape(prompt=16, answer=16),
    "long prompts": Shape(prompt=256, answer=16),
    "long answers": Shape(prompt=16, answer=128),
    "long prompts and answers": Shape(prompt=256, answer=128),
    "a larger batch": Shape(prompt=16, answer=48, batch=256),
}


WARM, MEASURED_S = 8, 12.0  # updates before a measurement of lending, and its seconds
# simulated devices with which the learner waits nearly always, most of the time, or hardly
LENDING = {
    "generation-bound": "sim:step_s=0.002,sample_s=0.002,median=24",
    "short answers": "sim:step_s=0.002,sample_s=0.002,median=1",
    "nearly balanced": "sim:step_s=0.0002,sample_s=0.0002,median=1",
    "balanced": "sim:step_s=0.0001,sample_s=0.00005,median=1",
}
LENT = Shape(prompt=16, answer=128, batch=16)


def reward(completions: Sequence[str], **columns: object) -> list[float]:
    """Grade samples so that groups differ."""
    return [float(len(one) % 7) for one in completions]


def program_of(shape: Shape, folder: Path) -> Program:
    """A run of this shape that may have samples of the version before."""
    rng = random.Random(1)
    file = folder / "prompts.jsonl"
    file.write_text(
        "".join(
            json.dumps({"prompt": "".join(rng.choices(LETTERS, k=shape.prompt))}) + "\n"
            for _ in range(512)
        )
    )
    return equipoise.program(
        str(file),
        algorithm="grpo",
        reward="placement_real:reward",
        max_lag=1,
        batch=shape.batch,
        steps=1_000_000,
        evaluate_episodes=0,
        max_completion_length=shape.answer,
        placement="auto",
        settings=["optimizer.learning_rate=0", f"source.model={MODEL}"],
    )


def show(name: str, shape: Shape, turns: int) -> None:
    """Print the forecast and the run of each plan, and what the choice costs."""
    with tempfile.TemporaryDirectory() as place, Interrupt() as interrupt:
        base = usual(program_of(shape, Path(place)))
        began = time.monotonic()
        _, found = placed(base, on="process", interrupt=interrupt, tell=lambda text: None)
        choice, chosen_s = found[KEY], time.monotonic() - began
        race = runs.raced(
            {one.name: one.program for one in candidates(base)},
            interrupt,
            until=time.monotonic() + TRUTH_S,
            turns=turns,
            far=float("inf"),
        )
        samples = batch_of(base)
    true = {plan: samples / rate for plan, rate in race.best.items() if rate}
    print(f"{name}: chosen in {chosen_s:.0f} s: {choice.value}, because {choice.why}")
    errors = []
    for plan, seconds in true.items():
        told = choice.measured.get(f"{plan}, forecast")
        if told is None:
            print(f"  {plan}: no forecast, {seconds:.3f} s")
            continue
        errors.append(told / seconds - 1)
        print(f"  {plan}: forecast {told:.3f} s, run {seconds:.3f} s, {errors[-1]:+.1%}")
    if left := (*race.left_out, *race.failed):
        print(f"  not run: {', '.join(left)}")
    if choice.value in true and errors:
        slower = true[choice.value] / min(true.values()) - 1
        worst = max(errors, key=abs)
        print(f"  largest error {worst:+.1%}; the choice is {slower:.1%} slower than the best")


def seconds_of_update(program: Program, place: Path, interrupt: Interrupt) -> tuple[float, str]:
    """Measure an update, after the first ``WARM`` -> its seconds, and what was lent meanwhile."""
    place.mkdir()
    runtime = ProcessRuntime(runs.throwaway(program, place / "run"))
    try:
        while runtime.version < WARM:
            interrupt.check()
            runtime.poll(0.02)
        workers = runtime.stats().workers.values()
        before = add(one for one in workers if one.side == "learning")
        began, first = time.monotonic(), runtime.version
        while time.monotonic() < began + MEASURED_S:
            interrupt.check()
            runtime.poll(0.02)
        seconds, stats = (time.monotonic() - began) / (runtime.version - first), runtime.stats()
        now = add(one for one in stats.workers.values() if one.side == "learning")
        waits = less(now, before).share("starved")
        lent = "lent" if stats.lent else "not lent"
        return seconds, f"the learner waits {waits:.0%}; {lent}, {stats.switches} switches"
    finally:
        runtime.stop()


def show_lending(name: str, turns: int) -> None:
    """Print seconds of an update with placement apart and elastic, in turns."""
    found: dict[str, list[float]] = {"apart": [], "elastic": []}
    forkserver.prepare(central=False)
    with tempfile.TemporaryDirectory() as place, Interrupt() as interrupt:
        base = alter(usual(program_of(LENT, Path(place))), actors=1, engine=LENDING[name])
        for turn in range(turns):
            for plan, seconds in found.items():
                folder = Path(place) / f"{plan} {turn}"
                one, told = seconds_of_update(alter(base, placement=plan), folder, interrupt)
                seconds.append(one)
                print(f"  {name}: {plan}: {one:.4f} s an update ({told})", flush=True)
    apart, elastic = (statistics.median(one) for one in found.values())
    print(f"{name}: elastic is {apart / elastic:.2f} times as fast as apart")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default=None)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--elastic", action="store_true", help="placement elastic next to apart")
    given = parser.parse_args()
    began = time.monotonic()
    for name in LENDING if given.elastic else ():
        show_lending(name, given.turns)
    for name, shape in SHAPES.items() if not given.elastic else ():
        if given.shape in (None, name):
            show(name, shape, given.turns)
    print(f"{time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
