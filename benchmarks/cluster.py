"""What a Ray cluster costs: steps/s on `process`, on Ray with all actors at home, and with all
actors on another node.

    .venv/bin/python benchmarks/cluster.py [--cases cartpole halfcheetah pong] [--rounds 5]

Ray has to be installed in that environment. The two nodes are raylets on this machine, so that all
rows have the same cores; rows and weights cross a socket as they would between machines. A round
runs every row in turn; a figure is the median over rounds of the ratio to the round's first row.
Rates are between the first and the last record, when all workers are there. Bytes are those that
`summary.json` has of the link, for each env step that was taken.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import host, ran, recorded, table
from rows import PRECISION

CASES = {
    "cartpole": "CartPole-v1 --algorithm impala --actors 2 --envs-per-actor 64 --unroll 64 --batch "
    "128 --max-lag 1 "
    "--steps 3000000",
    "halfcheetah": "HalfCheetah-v5 --algorithm ppo --actors 2 --envs-per-actor 8 --unroll 64 "
    "--max-lag 1 --steps 100000",
    "pong": "ALE/Pong-v5 --algorithm impala --actors 2 --envs-per-actor 16 --unroll 20 --batch 32 "
    "--max-lag 1 --steps 24000 "
    f"--precision {PRECISION} --threads 1",
}
ROWS = ("process", "ray, one node", "ray, actors on another node")


def options_of(row: str, address: str) -> list[str]:
    if row == "process":
        return ["--on", "process"]
    actors = 2 if row == "ray, one node" else 0
    return ["--on", "ray", "--address", address, "--cluster", f"home_actors={actors}"]


def run(case: str, row: str, address: str, limit_s: float) -> dict[str, float]:
    """One run -> its rate, and the bytes of a step on the link."""
    with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
        out = Path(folder) / "run"
        words = [
            sys.executable,
            "-m",
            "equipoise",
            "train",
            *shlex.split(CASES[case]),
            *options_of(row, address),
        ]
        words += [
            "--no-recipe",
            "--quiet",
            "--no-tensorboard",
            "--evaluate-episodes",
            "0",
            "--checkpoint-every",
            "0",
        ]
        words += ["--out", str(out)]
        ran(words, Path(folder) / "log", limit_s=limit_s)
        _, rate = recorded(out)
        summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    moved = sum(site["received"] for site in summary["sites"].values())
    return {"rate": rate, "bytes": moved / max(summary["taken"], 1)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cases", nargs="*", default=list(CASES), choices=list(CASES), metavar="CASE"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=900.0)
    a = parser.parse_args()
    from ray.cluster_utils import Cluster

    print(host(), flush=True)
    options: dict[str, Any] = {"num_cpus": 4, "object_store_memory": 100_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
    found: dict[str, dict[str, list[dict[str, float]]]] = {
        case: {row: [] for row in ROWS} for case in a.cases
    }
    try:
        cluster.add_node(**options)
        for number in range(a.rounds):
            for case in a.cases:
                for row in ROWS:
                    found[case][row].append(run(case, row, cluster.address, a.limit))
                    print(f"round {number + 1} {case} {row}: {found[case][row][-1]}", flush=True)
    finally:
        cluster.shutdown()
    lines = []
    for case, rows in found.items():
        for row, results in rows.items():
            ratio = statistics.median(
                one["rate"] / base["rate"] for one, base in zip(results, rows[ROWS[0]], strict=True)
            )
            rate, moved = (
                statistics.median(one[key] for one in results) for key in ("rate", "bytes")
            )
            lines.append([case, row, f"{rate:,.0f}", f"{ratio:.2f}", f"{moved:,.0f}"])
    print(table(["case", "on", "steps/s", "ratio", "bytes a step"], lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
