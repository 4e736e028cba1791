"""Samples/s of Pong's learner alone, by precision, with and without torch.compile, beside float32
operation by operation.

    .venv/bin/python benchmarks/learner_precision.py [--algorithm impala] [--torso resnet]
    [--threads 1] [--rounds 5]
        [--device cpu] [--isa AVX2] [--ways fp32,bf16,compile,bf16+compile,auto] [--json FILE]

A sample is one row of a batch, learned from for all epochs. Batches are random rows in the shapes
of the recipe. All ways are there at once and take turns, A B A B; a way's figure is the median of
its rounds. ``auto`` is the precision that a run takes if none is given (``tuning/choices.py``),
at these threads. ``graphs`` in a way: updates as CUDA graphs. ``--isa``: the whole again in a child
in which oneDNN may use these instructions at most, in place of another processor.

It ends with an error where auto is slower than float32 by more than 5 %.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from equipoise import api
from equipoise.learners.execution import chosen
from equipoise.plans.plan import plan_run
from equipoise.programs.fields import alter
from equipoise.tuning import choices
from equipoise.tuning.updates import random_batch
from equipoise.types import Batch, Program, learning

ISA = "ONEDNN_MAX_CPU_ISA"
WAYS = "fp32,bf16,compile,bf16+compile,auto"
# what the best way is to be of float32, and what auto may be slower: noise
FASTER, SLOWER = 1.6, 1.05


def program(a: argparse.Namespace) -> Program:
    settings = [f"algorithm.torso={a.torso}"] if a.torso else []
    made = api.program("ALE/Pong-v5", a.algorithm, settings=settings)
    lag = max(made.placement.max_lag or 0, 1)
    return alter(made, max_lag=lag, device=a.device, threads=a.threads, auto=(), precision="fp32")


def of_way(base: Program, way: str) -> tuple[Program, Any]:
    """The program of a way, and the record of a choice."""
    if way == "auto":
        return choices.settled(alter(base, auto=("precision",)), on="process", asked=("precision",))
    words = way.split("+")
    named = {"compile": "compile" in words, "graphs": "graphs" in words}
    precision = next((word for word in words if word not in named), "fp32")
    return alter(base, precision=precision, **named), None


class Timed:
    """A learner of a way, and the seconds of its updates."""

    def __init__(self, base: Program, way: str) -> None:
        made, self.choice = of_way(base, way)
        blue, self.said = plan_run(made), list[str]()
        self.precision, (name, *_) = made.placement.precision, blue.learns
        self.learner = blue.learner(name, blue.network(name))
        one = self.learner
        one.set_execution(
            chosen(one.algorithm, one.terms, one.net, one.rng, made.placement, self.said.append)
        )
        self.batch: Batch = random_batch(blue, name, self.learner.net)
        began = time.perf_counter()
        self.step()  # it allocates, and compiles
        self.step()
        self.first_s, self.took = time.perf_counter() - began, list[float]()

    def step(self) -> None:
        began = time.perf_counter()
        self.learner.step(self.batch)
        self.learner.settle()
        if self.learner.device.type == "cuda":
            torch.cuda.synchronize(self.learner.device)
        if hasattr(self, "took"):
            self.took.append(time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--algorithm", default="impala")
    parser.add_argument("--torso", default="", help="nature, resnet; else the recipe's")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", default=WAYS, help="with commas between")
    parser.add_argument("--isa", help="AVX2, AVX512_CORE, ...")
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    if a.isa and os.environ.get(ISA) != a.isa:
        sys.exit(
            subprocess.run(
                [sys.executable, *sys.argv], env=os.environ | {ISA: a.isa}, check=False
            ).returncode
        )
    torch.set_num_threads(a.threads)
    base = program(a)
    policy, *_ = learning(base).values()
    rows = policy.batch * policy.unroll
    ways = {way: Timed(base, way) for way in dict.fromkeys(["fp32", *a.ways.split(",")])}
    for _ in range(a.rounds):
        for timed in ways.values():
            timed.step()
    middle = {way: statistics.median(timed.took) for way, timed in ways.items()}
    found = [
        {
            "way": way,
            "precision": timed.precision,
            "samples/s": round(rows / middle[way]),
            "times": round(middle["fp32"] / middle[way], 2),
            "first_s": round(timed.first_s, 1),
            "rounds_s": [round(s, 4) for s in timed.took],
            "said": timed.said,
            "choice": timed.choice,
        }
        for way, timed in ways.items()
    ]
    print(
        f"{a.algorithm}, {type(ways['fp32'].learner.net.torso).__name__}, {rows} rows, {a.threads} "
        f"thread(s), {a.device}"
    )
    print(f"{ISA}={os.environ.get(ISA, 'all')}, torch {torch.__version__}\n")
    print(
        "| way | precision | samples/s | of fp32 | first two updates |\n| --- | --- | --- | --- | "
        "--- |"
    )
    for one in found:
        print(
            f"| {one['way']} | {one['precision']} | {one['samples/s']:,} | {one['times']:.2f} | "
            f"{one['first_s']} s |"
        )
    for text in [text for one in found for text in one["said"]]:
        print(text)
    best = max(found, key=lambda one: one["times"])
    print(
        f"\nthe best way is {best['way']}: {best['times']:.2f} times fp32 (expected {FASTER} where "
        "bf16 has instructions)"
    )
    if a.json:
        a.json.write_text(json.dumps(found, indent=1))
    if "auto" in ways and middle["auto"] > SLOWER * middle["fp32"]:
        sys.exit(
            f"auto: expected at most {SLOWER} times the seconds of fp32, got "
            f"{middle['auto'] / middle['fp32']:.2f}"
        )


if __name__ == "__main__":
    main()
