"""What one act costs: torch's forward against the lean one, by net, streams and weights.

    .venv/bin/python benchmarks/acting.py [--rounds 7] [--nets mlp,lstm,nature] [--streams
    1,8,64,512] [--page FILE.md]

The time of ``actors.forward`` for one row of all streams: observation in, action and behaviour
written to their rows, recurrent state kept; one thread, fixed random weights and rows, PPO's act
over six actions. The six forwards of a line take turns in every round, and the figures are medians
over rounds; ratios are taken within a round. ``error`` is the mean and the greatest ``|p - p of
fp32|`` of the actions taken, of these random weights (a run reports its own).

``fetch`` is what follows a fetch of weights: rounding them, and what the recording computes of
weights alone.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from gymnasium import spaces

from equipoise.actors.forward.forward import FORWARDS
from equipoise.actors.forward.rounding import errors
from equipoise.algorithms.ppo import PPO
from equipoise.tree import ArraySpec
from equipoise.tuning.forward import Acts
from equipoise.types import EnvSpec

NETS: dict[str, tuple[PPO, tuple[int, ...], str]] = {
    "mlp": (PPO(), (8,), "float32"),
    "lstm": (PPO(core="lstm"), (8,), "float32"),
    "nature": (PPO(), (4, 84, 84), "uint8"),
}
ACTINGS = ("fp32", "bf16", "int8")
SLICE_S = 0.02  # of one forward in one round


def timed(call: Any, count: int) -> float:
    """us of this thread on a core, a call."""
    begun = time.thread_time()
    for _ in range(count):
        call()
    return (time.thread_time() - begun) / count * 1e6


def measure(name: str, streams: int, rounds: int) -> list[str]:
    """The lines of the table for a net and a number of streams."""
    algorithm, shape, dtype = NETS[name]
    space = (
        spaces.Box(0, 255, shape, np.uint8)
        if dtype == "uint8"
        else spaces.Box(-1, 1, shape, np.float32)
    )

    class Specs:
        obs, action, behaviour = (
            ArraySpec(shape, dtype),
            ArraySpec((), "int64"),
            {"logp": ArraySpec((), "float32")},
        )

    calls, fetches, wrong = {}, {}, {}
    for acting in ACTINGS:
        for kind, forward in FORWARDS.items():
            torch.manual_seed(0)
            net: Any = algorithm.network(EnvSpec(observation=space, action=spaces.Discrete(6)))
            torch.nn.init.orthogonal_(net.policy_head.weight, 1.0)
            acts: Any = Acts(
                algorithm,
                net,
                row=Specs,
                streams=streams,
                noise_columns=1,
                acting=acting,  # type: ignore[arg-type]
            )
            made = acts.make(forward)
            row = acts.row(made, 0)
            calls[acting, kind] = partial(made, row, made(row, acts.state))
            fetches[acting, kind] = partial(made.use, made._params)
            if acting != "fp32":
                wrong[acting] = errors(made, row, acts.state, {})
    counts = {key: max(int(SLICE_S * 1e6 / timed(call, 2)), 1) for key, call in calls.items()}
    took: dict[Any, list[float]] = {key: [] for key in calls}
    for _ in range(rounds):
        for key, call in calls.items():
            took[key].append(timed(call, counts[key]))
    fetch = {
        key: statistics.median(timed(call, 5) for _ in range(5)) for key, call in fetches.items()
    }
    lines = []
    for acting in ACTINGS:
        a, b = took[acting, "torch"], took[acting, "lean"]
        ratio = statistics.median(x / y for x, y in zip(a, b, strict=True))
        best = statistics.median(
            x / min(y) for x, *y in zip(took["fp32", "torch"], a, b, strict=True)
        )
        error = (
            f"{float(wrong[acting].mean()):.1e}, {float(wrong[acting].max()):.1e}"
            if acting in wrong
            else "-"
        )
        figures = (
            f"{statistics.median(a):,.0f} | {statistics.median(b):,.0f} | {ratio:.2f} | {best:.2f}"
        )
        lines.append(
            f"| {name} | {streams} | {acting} | {figures} | {fetch[acting, 'lean']:,.0f} | {error} "
            "|"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--streams", default="1,8,64,512")
    parser.add_argument("--page", type=Path, help="a Markdown page to write, besides stdout")
    given = parser.parse_args()
    torch.set_num_threads(1)
    command = " ".join(["    .venv/bin/python benchmarks/acting.py", *sys.argv[1:]])
    head = [
        "# What an act costs",
        "",
        command,
        "",
        f"Microseconds on a core of one row of all streams, medians of {given.rounds} rounds in "
        "which the six forwards of a",
        "net and a number of streams take turns; one thread, on a machine that other work shares: "
        "only ratios mean something.",
        f"torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores, "
        f"{time.strftime('%Y-%m-%d')}.",
        "",
        "torch / lean: of the same weights. fp32 torch / best: torch's forward of exact weights "
        "over the faster of the line.",
        "fetch: us after a fetch of weights, lean. error: mean and greatest |p - p of fp32| at "
        "random weights.",
        "",
        "| net | streams | weights | torch us | lean us | torch / lean | fp32 torch / best | fetch "
        "us | error |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    print("\n".join(head), flush=True)
    lines = []
    for name in given.nets.split(","):
        for streams in map(int, given.streams.split(",")):
            lines += (found := measure(name, streams, given.rounds))
            print("\n".join(found), flush=True)
    if given.page is not None:
        given.page.write_text("\n".join([*head, *lines, ""]))


if __name__ == "__main__":
    main()
