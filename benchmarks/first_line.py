"""How long a newcomer waits: from the command to its first line, to the first step of CartPole, to
CartPole solved.

    .venv/bin/python benchmarks/first_line.py [--rounds 5] [--json FILE]

Each round runs ``equipoise train CartPole-v1 --stop-at 475`` as a process whose output is a pipe.
The env is Gymnasium's Python one behind a wrapper that notes the time of its first step. Figures
are medians of the rounds, in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ENV = """
import os
import time
import gymnasium


class Noting(gymnasium.Wrapper):
    noted = False

    def step(self, action):
        if not Noting.noted:
            Noting.noted = True
            with open(os.environ["FIRST_STEP"], "a") as file:
                file.write(f"{time.time()}\\n")
        return super().step(action)


def make():
    return Noting(gymnasium.make("CartPole-v1"))
"""
SETTINGS = (  # CartPole's recipe of PPO, which is found by the id
    "policy.unroll=32",
    "policy.batch=16",
    "algorithm.gamma=0.98",
    "algorithm.lambda_=0.8",
    "algorithm.entropy=0",
    "optimizer.learning_rate=0.001",
    "algorithm.epochs=10",
    "algorithm.minibatches=2",
    "algorithm.anneal_clip=true",
)


def run(place: Path, turn: int) -> dict[str, float]:
    """One round -> seconds by what was waited for."""
    (place / "noting.py").write_text(ENV)
    first_step = place / f"first-step-{turn}"
    words = [
        "train",
        "noting:make",
        "--actors",
        "1",
        "--envs-per-actor",
        "16",
        "--max-lag",
        "0",
        "--steps",
        "500k",
    ]
    words += ["--stop-at", "475", "--seed", str(turn), "--out", str(place / f"run-{turn}")]
    words += [word for setting in SETTINGS for word in ("--set", setting)]
    began, wall = time.perf_counter(), time.time()
    with subprocess.Popen(
        [sys.executable, "-m", "equipoise", *words],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"FIRST_STEP": str(first_step)},
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        line_s = time.perf_counter() - began
        rest = process.stdout.read()
    if process.returncode:
        raise RuntimeError(f"round {turn}: exit code {process.returncode}: {rest[-1500:]}")
    step_s = min(float(text) for text in first_step.read_text().split()) - wall
    return {
        "first line": line_s,
        "first step": step_s,
        "end of the solved run": time.perf_counter() - began,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="equipoise-first-line-") as place:
        found = [run(Path(place), turn) for turn in range(a.rounds)]
    medians = {name: statistics.median(one[name] for one in found) for name in found[0]}
    for name, seconds in medians.items():
        print(f"{name:24} {seconds:6.2f} s   of {', '.join(f'{one[name]:.2f}' for one in found)}")
    if a.json is not None:
        a.json.write_text(json.dumps({"medians": medians, "rounds": found}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
