"""tanh by way of a sigmoid (``nets/activations.py``) beside torch's: nanoseconds a number, and
whole training runs.

    .venv/bin/python benchmarks/activations.py [--rounds 3] [--streams 4096] [--steps 1M]

The runs are PPO of ``device:cartpole`` on one thread, in turns; the ratio is that of the medians.
``ATEN_CPU_CAPABILITY=avx2`` (or ``default``) in the environment stands in for another processor;
with ``default`` ours is torch's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from harness import host, table
from torch import Tensor

from equipoise import api
from equipoise.nets import activations
from equipoise.programs.settings import convert

SIZES = (2**10, 2**12, 2**14, 2**16, 2**20)
UNROLL, MINIBATCH = 32, 16_384


def nanoseconds(call: Callable[[Tensor], Tensor], x: Tensor, rounds: int = 7) -> float:
    """The best of some rounds, a number."""
    count = max(2**20 // len(x), 1)
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(count):
            call(x)
        found.append((time.perf_counter() - began) / count / len(x))
    return 1e9 * min(found)


def rate(ours: bool, streams: int, steps: int) -> float:
    """Env steps a second of a run."""
    rows = streams * UNROLL
    made = api.program(
        "device:cartpole",
        "ppo",
        actors=1,
        envs_per_actor=streams,
        unroll=UNROLL,
        max_lag=0,
        recipe=False,
        steps=max(steps // rows, 4) * rows,
        evaluate_episodes=0,
        threads=1,
        checkpoint_every=0,
        precision="fp32",
        settings=["algorithm.epochs=1", f"algorithm.minibatches={max(rows // MINIBATCH, 1)}"],
    )
    has, activations.VECTORS = activations.VECTORS, ours and activations.VECTORS
    try:
        with (
            tempfile.TemporaryDirectory() as out,
            api.start(made, on="serial", out=Path(out) / "run", tensorboard=False) as going,
        ):
            for _ in going:
                pass
    finally:
        activations.VECTORS = has
    assert going.summary is not None
    return float(going.summary["steps_per_s"])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="tanh by way of a sigmoid beside torch's")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=4096)
    parser.add_argument(
        "--steps", type=lambda text: convert(text, int, "--steps"), default=1_000_000
    )
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    print(json.dumps({**host(), "capability": torch.backends.cpu.get_cpu_capability()}))
    lines = []
    for size in SIZES:
        theirs, ours = (
            nanoseconds(call, torch.randn(size)) for call in (torch.tanh_, activations.of_sigmoid_)
        )
        lines.append([f"{size:,}", f"{theirs:.2f}", f"{ours:.2f}", f"{theirs / ours:.2f}"])
    print(table(["numbers", "torch.tanh_, ns", "by sigmoid, ns", "ratio"], lines))
    found: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(args.rounds):
        for ours, rates in found.items():
            rates.append(rate(ours, args.streams, args.steps))
    names = {False: "torch's tanh", True: "ours"}
    print(
        table(
            ["runs", "env steps/s"],
            [[names[key], " ".join(f"{x:,.0f}" for x in rates)] for key, rates in found.items()],
        )
    )
    print(
        f"ours / torch's = {statistics.median(found[True]) / statistics.median(found[False]):.2f}"
    )


if __name__ == "__main__":
    main()
