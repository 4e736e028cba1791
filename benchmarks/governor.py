"""``--balance auto`` from bad starts, beside the best of a grid of settings that stay.

    .venv/bin/python benchmarks/governor.py [--cases crowded,sleeping] [--page
    docs/results/governor.md] .venv/bin/python benchmarks/governor.py --returns 5

A case has limits at which a run is slow, or wastes actors and lag. It is run with ``--balance
auto`` for two minutes: steps/s are those of the second minute, in which changes are counted as
well. The grid is of the same run with other numbers of actors and bounds on lag, for some seconds
each. In "slower" a step begins to take four times as long after 45 s; the grid is of the slow env.
In "taken" every second actor is killed 45 s after it began, and the run has to replace it.

``--returns``: so many seeds of CartPole by IMPALA with ``--balance auto`` and without, and their
last evaluations.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import host, markdown
from matrix import OURS, trained

HERE = Path(__file__).resolve().parent
SECONDS, STATIC_S, STATIC_WARMUP_S = 60.0, 8.0, 8.0
PLANTED = "outside.planted:Slow --algorithm outside.planted:SlowIMPALA --set algorithm.hidden=[16]"
CASES = {  # the run, most actors, the largest lag
    "crowded": ("CartPole-v1 --algorithm impala --envs-per-actor 4 --unroll 20 --batch 32", 16, 4),
    "wide": ("CartPole-v1 --algorithm impala --envs-per-actor 32 --unroll 20 --batch 128", 8, 8),
    "halfcheetah": (
        "HalfCheetah-v5 --algorithm ppo --envs-per-actor 4 --unroll 64 --batch 32",
        8,
        4,
    ),
    "sleeping": (
        f"{PLANTED} --envs-per-actor 2 --unroll 8 --batch 16 --set env.sleep_s=0.02",
        16,
        4,
    ),
    "slow learner": (
        f"{PLANTED} --envs-per-actor 2 --unroll 8 --batch 16 --set env.sleep_s=0.005 --set "
        "algorithm.learn_us=800",
        16,
        8,
    ),
    "straggler": (
        f"{PLANTED} --envs-per-actor 2 --unroll 8 --batch 16 --set env.sleep_s=0.005 --set "
        "env.behind=20",
        8,
        8,
    ),
    "both slow": (
        f"{PLANTED} --envs-per-actor 2 --unroll 8 --batch 16 --set env.sleep_s=0.01 --set "
        "algorithm.learn_us=200",
        16,
        8,
    ),
    "a core each": (
        f"{PLANTED} --envs-per-actor 2 --unroll 8 --batch 16 --set env.work_s=0.001",
        16,
        8,
    ),
    "small blocks": (
        "CartPole-v1 --algorithm appo --envs-per-actor 1 --unroll 8 --batch 16",
        16,
        8,
    ),
    "pendulum": ("Pendulum-v1 --algorithm ppo --envs-per-actor 8 --unroll 32 --batch 64", 12, 4),
    "taken": (f"{PLANTED} --envs-per-actor 2 --unroll 8 --batch 16 --set env.sleep_s=0.01", 16, 4),
    "slower": (
        f"{PLANTED} --envs-per-actor 2 --unroll 8 --batch 16 --set env.sleep_s=0.005 --set "
        "algorithm.learn_us=400",
        16,
        8,
    ),
}


def rate(
    options: str, warmup: float, seconds: float
) -> tuple[float, dict[str, Any], list[dict[str, Any]]]:
    """Steps/s of a window, the summary, and the steps of the governor."""
    with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
        out, log = Path(folder) / "run", Path(folder) / "log"
        words = [
            str(OURS),
            "train",
            *shlex.split(options),
            "--no-recipe",
            "--quiet",
            "--no-tensorboard",
            "--steps",
            "2000M",
        ]
        words += [
            "--evaluate-episodes",
            "0",
            "--checkpoint-every",
            "0",
            "--on",
            "process",
            "--out",
            str(out),
        ]
        env = {"PYTHONPATH": f"{HERE}:{HERE.parent / 'src'}"}
        first, last = trained(words, out, log, warmup=warmup, seconds=seconds, env=env)
        file = out / "governor.jsonl"
        steps = (
            [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        )
        summary = json.loads((out / "summary.json").read_text())
        return (
            (last["env_steps"] - first["env_steps"]) / (last["wall_s"] - first["wall_s"]),
            summary,
            steps,
        )


def grid(options: str, actors: int, lag: int) -> dict[tuple[int, int], float]:
    """Each number of actors with the largest lag, and the best of them with the smallest."""
    found = dict[tuple[int, int], float]()

    def made(count: int, bound: int) -> None:
        found[count, bound], *_ = rate(
            f"{options} --actors {count} --max-lag {bound}", STATIC_WARMUP_S, STATIC_S
        )
        print(f"  actors={count} max_lag={bound}: {found[count, bound]:,.0f}", flush=True)

    for count in (n for n in (1, 2, 3, 4, 8, 16) if n <= actors):
        made(count, lag)
    made(max(found, key=lambda one: found[one])[0], 1)
    return found


def judged(case: str) -> list[str]:
    options, actors, lag = CASES[case]
    later = {"slower": " --set env.later=45", "taken": " --set env.taken=45"}.get(case, "")
    governed, summary, steps = rate(
        f"{options}{later} --actors {actors} --max-lag {lag} --balance auto", SECONDS, SECONDS
    )
    if case == "slower":
        options = options.replace("env.sleep_s=0.005", "env.sleep_s=0.02")
    came = [one for one in steps if one["wall_s"] > SECONDS]
    print(
        case,
        f"{governed:,.0f}",
        summary["governor"],
        f"{len(steps)} steps, {len(came)} of them late",
        flush=True,
    )
    still = grid(options, actors, lag)
    best = max(still, key=lambda one: still[one])
    return [
        case,
        f"{still[actors, lag]:,.0f}",
        f"{governed:,.0f}",
        f"{governed / still[best]:.2f}",
        f"{summary['governor']['actors']} of {actors}",
        f"{summary['governor']['max_lag']} of {lag}",
        str(len(steps)),
        str(len(came)),
        f"{still[best]:,.0f} ({best[0]} actors, lag {best[1]})",
    ]


def returns(seeds: int) -> None:
    """The last evaluation of each seed, governed and not."""
    for balance in ("off", "auto"):
        found = list[float]()
        for seed in range(1, seeds + 1):
            with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
                words = [
                    str(OURS),
                    "train",
                    "CartPole-v1",
                    "--algorithm",
                    "impala",
                    "--actors",
                    "4",
                    "--seed",
                    str(seed),
                ]
                words += [
                    "--quiet",
                    "--no-tensorboard",
                    "--balance",
                    balance,
                    "--out",
                    f"{folder}/run",
                ]
                subprocess.run(
                    words, check=True, env=os.environ | {"PYTHONPATH": str(HERE.parent / "src")}
                )
                found.append(
                    json.loads(Path(folder, "run/summary.json").read_text())["evaluation"]["mean"]
                )
        print(
            f"--balance {balance}: last evaluations {found}, mean {sum(found) / len(found):.1f}",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default=",".join(CASES), metavar="A,B")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--returns", type=int, default=0, metavar="SEEDS")
    a = parser.parse_args()
    print(host(), flush=True)
    if a.returns:
        returns(a.returns)
        return 0
    rows = [judged(case) for case in a.cases.split(",")]
    head = [
        "case",
        "steps/s at the limits",
        "governed",
        "of the best",
        "actors",
        "max lag",
        "steps tried",
        "after 60 s",
        "best",
    ]
    said = (
        f"# The governor from bad starts\n\nWritten by `.venv/bin/python {shlex.join(sys.argv)}`. "
        "What the columns are: "
        "[the benchmark](../../benchmarks/governor.py). "
        f"On {host()['cpu']}, {host()['cores']} cores.\n\n{markdown(head, rows)}\n"
    )
    print(said)
    if a.page:
        a.page.write_text(said, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
