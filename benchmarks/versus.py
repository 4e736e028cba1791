"""Compare the speed of two source trees: the same command lines with the old and the new one in
turn, as whole processes.

    .venv/bin/python benchmarks/versus.py OLD/src NEW/src [--cases cartpole sac ...] [--rounds 5]

A round runs every case with the old tree and with the new one; even rounds begin with the new. The
figure of a case is the ratio new / old of each round, and the median of those: above 1 the new tree
is faster. Rates are steps (or updates) a second between the first and the last record, so that
start-up is not in them; ``solve`` is the wall time of the whole process to CartPole solved, and
``start`` that of one update, whose ratios are old / new.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Minibatches are given where no recipe gives them, since their default has changed between trees.
CASES = {
    "cartpole": "CartPole-v1 --algorithm ppo --steps 400000",
    "cartpole-python": "python:CartPole-v1 --algorithm ppo --set algorithm.minibatches=4 --steps "
    "150000",
    "halfcheetah": "HalfCheetah-v5 --algorithm ppo --steps 150000",
    "pong": "ALE/Pong-v5 --algorithm ppo --set algorithm.minibatches=4 --steps 12000 --precision "
    "fp32 --no-recipe",
    "sac": "Pendulum-v1 --algorithm sac --steps 6000",
    "dqn": "CartPole-v1 --algorithm dqn --steps 60000",
    "text": "sort --algorithm grpo --model tiny --no-recipe --actors 2 --envs-per-actor 8 "
    "--unroll 1 --batch 32 --max-completion-length 16 --steps 4000",
    "start": "CartPole-v1 --algorithm ppo --steps 1024",
    "solve": "CartPole-v1 --algorithm ppo --stop-at 475",
}
WHOLE = ("start", "solve")  # the wall time of the whole process counts
LIMIT_S = 900.0


def _measure(source: Path, case: str, out: Path) -> float:
    """Run one case with one tree -> its rate, or 1 / seconds for ``solve``."""
    evaluations = [] if case == "solve" else ["--evaluate-episodes", "0"]
    words = [
        "train",
        *shlex.split(CASES[case]),
        "--seed",
        "1",
        *evaluations,
        "--checkpoint-every",
        "0",
        "--no-tensorboard",
    ]
    command = [
        sys.executable,
        "-c",
        "from equipoise.cli import main; main()",
        *words,
        "--quiet",
        "--out",
        str(out),
    ]
    began = time.perf_counter()
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    wall_s = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(
            f"{case} with {source}: exit code {done.returncode}: "
            f"{done.stderr[-1500:]}{done.stdout[-500:]}"
        )
    if case in WHOLE:
        return 1.0 / wall_s
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    records = [record for record in records if not record.get("timed")]
    first, last = records[0], records[-1]
    return float((last["env_steps"] - first["env_steps"]) / (last["wall_s"] - first["wall_s"]))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument(
        "--cases", nargs="*", default=list(CASES), choices=list(CASES), metavar="CASE"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {case: [] for case in a.cases}
    with tempfile.TemporaryDirectory(prefix="equipoise-versus-") as place:
        for turn in range(a.rounds):
            for case in a.cases:
                rates: dict[str, float] = {}
                for side in ("old", "new")[:: 1 if turn % 2 == 0 else -1]:
                    rates[side] = _measure(
                        getattr(a, side).resolve(), case, Path(place) / f"{case}-{turn}-{side}"
                    )
                found[case].append((rates["old"], rates["new"]))
                ratio = rates["new"] / rates["old"]
                print(
                    f"round {turn + 1} {case}: old {rates['old']:.4g} new {rates['new']:.4g} ratio "
                    f"{ratio:.3f}",
                    flush=True,
                )
    medians = {
        case: statistics.median(new / old for old, new in pairs) for case, pairs in found.items()
    }
    for case, ratio in medians.items():
        print(f"{case:16} median ratio {ratio:.3f} of {a.rounds} rounds")
    if a.json is not None:
        a.json.write_text(json.dumps({"medians": medians, "rounds": found}, indent=2) + "\n")
    print(json.dumps(medians))
    return 0


if __name__ == "__main__":
    sys.exit(main())
