"""What several learners gain: updates/s with 1, 2 and 4 of them, of a learner that sleeps and of
real work.

    .venv/bin/python benchmarks/learners.py [--cases sleeping pong halfcheetah cartpole] [--rounds
    3]

``sleeping`` is planted: a learner sleeps 50 ms for its share of a batch, which has as many rows
with more learners: cores are no limit there. Real work has one thread a learner, and is compared
with one learner of two threads. A round runs every row in turn; a figure is the median over rounds
of the ratio to the round's first row. Rates are between the first and the last record.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import tempfile
from pathlib import Path

from harness import host, ran, recorded, table
from matrix import OURS
from rows import PRECISION

HERE = Path(__file__).resolve().parent
BITS = f"--precision {PRECISION}"
SLEEPING = (
    "CartPole-v1 --algorithm outside.sleepy:Sleepy --actors 4 --envs-per-actor 16 --unroll "
    "16 --max-lag 3 --steps 51200"
)
PONG = (
    "ALE/Pong-v5 --algorithm ppo --actors 2 --envs-per-actor 4 --unroll 32 --max-lag 1 --steps "
    f"10240 --precision {PRECISION}"
)
CHEETAH = (
    "HalfCheetah-v5 --algorithm ppo --actors 2 --envs-per-actor 8 --unroll 64 --max-lag 1 "
    "--steps 61440"
)
CARTPOLE = (
    "CartPole-v1 --algorithm ppo --actors 2 --envs-per-actor 16 --unroll 64 --max-lag 1 "
    "--steps 400000"
)
WAYS = {
    "1 of two threads": "--threads 2",
    "1 of one thread": "--threads 1",
    "2 of one thread": "--learners 2 --threads 1",
}
CASES: dict[str, tuple[str, dict[str, str]]] = {
    "sleeping": (
        SLEEPING,
        {f"{n} learners": f"--learners {n} --batch {16 * n}" for n in (1, 2, 4)},
    ),
    "pong": (PONG, WAYS),
    "halfcheetah": (CHEETAH, WAYS),
    "cartpole": (CARTPOLE, {"1": "", "2": "--learners 2"}),
}


def run(case: str, options: str, limit_s: float) -> dict[str, float]:
    """One run -> its rate, and the shares of the learners' time."""
    with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
        out = Path(folder) / "run"
        words = [
            str(OURS),
            "train",
            *shlex.split(CASES[case][0]),
            *shlex.split(options),
            "--no-recipe",
            "--quiet",
            "--no-tensorboard",
        ]
        words += ["--evaluate-episodes", "0", "--checkpoint-every", "0", "--out", str(out)]
        ran(words, Path(folder) / "log", limit_s=limit_s, PYTHONPATH=str(HERE))
        records, rate = recorded(out)
    learners = [
        shares for title, shares in records[-1]["balance"].items() if title.startswith("learner")
    ]
    total = sum(
        sum(one[state] for state in ("worked", "preempted", "starved", "blocked"))
        for one in learners
    )
    waits = {
        state: sum(one[state] for one in learners) / total for state in ("starved", "preempted")
    }
    return {
        "rate": rate,
        "summing": sum(one["parts"]["all-reduce"] for one in learners) / total,
    } | waits


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cases", nargs="*", default=list(CASES), choices=list(CASES), metavar="CASE"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=900.0)
    a = parser.parse_args()
    print(host(), flush=True)
    found = {case: {row: list[dict[str, float]]() for row in CASES[case][1]} for case in a.cases}
    for number in range(a.rounds):
        for case in a.cases:
            for row, options in CASES[case][1].items():
                found[case][row].append(run(case, options, a.limit))
                print(f"round {number + 1} {case} {row}: {found[case][row][-1]}", flush=True)
    lines = []
    for case, rows in found.items():
        first = next(iter(rows.values()))
        for row, results in rows.items():
            ratio = statistics.median(
                one["rate"] / whole["rate"] for one, whole in zip(results, first, strict=True)
            )
            shares = [
                f"{statistics.median(one[state] for one in results):.0%}"
                for state in ("summing", "starved", "preempted")
            ]
            lines.append(
                [
                    case,
                    row,
                    f"{statistics.median(one['rate'] for one in results):,.0f}",
                    f"{ratio:.2f}",
                    *shares,
                ]
            )
    print(
        table(
            ["case", "learners", "steps/s", "ratio", "waits for sums", "for rows", "for a core"],
            lines,
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
