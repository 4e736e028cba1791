"""How long until Python and the command line answer: medians of fresh processes, in turn.

    .venv/bin/python benchmarks/imports.py [--rounds 9] [--json FILE]

The goals: ``import equipoise`` costs at most 0.5 s beyond torch's own, also with everything that
training needs (``equipoise.api``); ``equipoise --help`` answers within 0.3 s. Seconds of the
processors are shown beside those of the clock: on a machine that does other things only they mean
something.
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

CASES = {
    "python alone": ["-c", "pass"],
    "import torch": ["-c", "import torch"],
    "import equipoise": ["-c", "import equipoise"],
    "import equipoise, torch": ["-c", "import equipoise, torch"],
    "import equipoise.api": ["-c", "import equipoise.api"],
    "equipoise --help": ["-c", "from equipoise.cli import main; main()", "--help"],
    "equipoise train --help": ["-c", "from equipoise.cli import main; main()", "train", "--help"],
    "equipoise check --help": ["-c", "from equipoise.cli import main; main()", "check", "--help"],
}
GOALS = {
    "import equipoise.api beyond torch": 0.5,
    "equipoise --help": 0.3,
    "equipoise train --help": 0.3,
}


def measure(rounds: int) -> dict[str, tuple[float, float]]:
    """Median (wall, processor) seconds of each case; the first round, which fills the caches of
    files, does not count.
    """
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    for n in range(rounds + 1):
        for name, arguments in CASES.items():
            began, before = time.perf_counter(), os.times()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            wall, after = time.perf_counter() - began, os.times()
            cpu = (
                after.children_user
                + after.children_system
                - before.children_user
                - before.children_system
            )
            if n:
                took[name].append((wall, cpu))
    medians = {
        name: (statistics.median(w for w, _ in rows), statistics.median(c for _, c in rows))
        for name, rows in took.items()
    }
    (wall, cpu), (torch_wall, torch_cpu) = medians["import equipoise.api"], medians["import torch"]
    medians["import equipoise.api beyond torch"] = (wall - torch_wall, cpu - torch_cpu)
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    medians = measure(given.rounds)
    for name, (wall, cpu) in medians.items():
        goal = (
            f"   goal {GOALS[name]:.1f} s{'' if wall <= GOALS[name] else ', MISSED'}"
            if name in GOALS
            else ""
        )
        print(f"{name:<36}{wall:7.3f} s {cpu:7.3f} s of processors{goal}")
    if given.json:
        found = {name: {"wall_s": wall, "cpu_s": cpu} for name, (wall, cpu) in medians.items()}
        given.json.write_text(
            json.dumps({"rounds": given.rounds, "medians": found}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
