"""Start of process to solved, CartPole-v1: ours beside Stable-Baselines3's tuned PPO, by one rule,
seeds in turn.

    .venv/bin/python benchmarks/solve.py [--seeds 0,1,2,3,4] [--peers-home .peers] [--json FILE]

Solved: 20 episodes of the deterministic policy have a mean of at least 475, and so have 100 fresh
ones of the same weights. The clock runs from spawning the process to the end of the 100.
Evaluations begin when the mean of the last 20 training episodes is at least 380 (0.8 of the goal).

- ours: ``equipoise train CartPole-v1 --algorithm ppo --stop-at 475 --quiet``: evaluates while it
  trains. The moment is when a summary.json that says "solved" is on the disk (seen from here), so
  stopping and saving are included. Afterwards ``equipoise evaluate --episodes 100`` plays with
  seeds of ours; a mean under 475 fails the benchmark.
- sb3: settings of rl-baselines3-zoo, evaluate_policy on a DummyVecEnv of 20, at most every 5,000
  env steps, training waits meanwhile. Besides: without the confirmation ("pass"), without any
  evaluation ("training only"), and by the rule of its own docs (training mean of the last 100
  episodes >= 475, evaluations not counted).
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import Failed, calibrate, host, median, run_for_json, started, table, tail

HERE = Path(__file__).resolve().parent
THRESHOLD, TRIGGER = 475.0, 380.0
COLUMNS = {  # of the table -> field
    "ours": "solved_s",
    "sb3": "solved_s",
    "sb3 pass": "pass_s",
    "sb3 training only": "training_s",
    "sb3 own rule": "train_rule_s",
}


def solve_ours(a: argparse.Namespace, seed: int, folder: Path) -> dict[str, Any]:
    out, log = folder / "run", folder / "log"
    command = [
        str(a.equipoise),
        "train",
        "CartPole-v1",
        "--algorithm",
        "ppo",
        "--stop-at",
        f"{THRESHOLD:g}",
        "--quiet",
        "--seed",
        str(seed),
        "--out",
        str(out),
        *shlex.split(a.ours),
    ]
    summary_file = out / "summary.json"
    start = time.time()
    with started(command, log) as process:
        while not summary_file.exists():
            if process.poll() is not None and not summary_file.exists():
                raise Failed(
                    f"exit code {process.returncode} and no summary: "
                    f"{shlex.join(command)}\n{tail(log)}"
                )
            if time.time() - start > a.limit:
                raise Failed(
                    f"not solved within {a.limit:.0f} s: {shlex.join(command)}\n{tail(log)}"
                )
            time.sleep(0.01)
        solved_s = time.time() - start
        try:
            code = process.wait(30)
        except subprocess.TimeoutExpired:
            raise Failed(
                f"did not end within 30 s of its summary: {shlex.join(command)}\n{tail(log)}"
            ) from None
        exit_s = time.time() - start
    summary = json.loads(summary_file.read_text(encoding="utf-8"))
    if code or summary["status"] != "solved":
        raise Failed(
            f"exit code {code}, status {summary['status']}: {shlex.join(command)}\n{tail(log)}"
        )
    return {
        "value": solved_s,
        "solved_s": solved_s,
        "exit_s": exit_s,
        "own_solved_at_s": summary["solved_at_s"],
        "env_steps": summary["env_steps"],
        "checked_return": check_ours(a, out, seed),
        "command": shlex.join(command),
    }


def check_ours(a: argparse.Namespace, out: Path, seed: int) -> float:
    """100 episodes that training never knew of."""
    command = [
        str(a.equipoise),
        "evaluate",
        str(out),
        "--episodes",
        "100",
        "--seed",
        str(10_000 + seed),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = re.search(r"return ([\d.,]+)", done.stdout)
    if done.returncode or not found:
        raise Failed(
            f"exit code {done.returncode}: {shlex.join(command)}\n{done.stdout}{done.stderr}"
        )
    mean = float(found[1].replace(",", ""))
    if mean < THRESHOLD:
        raise Failed(
            f"100 episodes from outside have a mean of {mean}, under {THRESHOLD}: "
            f"{shlex.join(command)}"
        )
    return mean


def solve_sb3(a: argparse.Namespace, seed: int, folder: Path) -> dict[str, Any]:
    command = [
        str(a.peers_home / "sb3/bin/python"),
        str(HERE / "peers/solve_sb3.py"),
        "--seed",
        str(seed),
        "--threshold",
        str(THRESHOLD),
        "--trigger-return",
        str(TRIGGER),
        *shlex.split(a.sb3),
    ]
    start = time.time()
    found = run_for_json(command, folder / "log", limit_s=a.limit)
    return found | {
        "solved_s": found["value"] - start,
        "pass_s": found["pass_at"] - start,
        "training_s": found["pass_at"] - start - found["evaluation_s"],
        "train_rule_s": found["train_rule_at"] - start if found["train_rule_at"] else None,
        "command": shlex.join(command),
    }


def times(results: Sequence[dict[str, Any]], column: str) -> list[float]:
    who = column.partition(" ")[0]
    found = [r.get(COLUMNS[column]) for r in results if r["who"] == who]
    return [x for x in found if x is not None]


def show(a: argparse.Namespace, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    lines = []
    for seed in a.seeds:
        of = {r["who"]: r for r in results if r["seed"] == seed}
        cells = [of[column.partition(" ")[0]].get(field) for column, field in COLUMNS.items()]
        steps = [of[who].get("env_steps", "-") for who in ("ours", "sb3")]
        probes = [f"{of[who]['probe_before']['two_core']:.1f}" for who in ("ours", "sb3")]
        lines.append(
            [f"seed {seed}", *("-" if c is None else f"{c:.2f}" for c in cells), *steps, *probes]
        )
    medians = {column: median(times(results, column)) for column in COLUMNS}
    lines.append(
        ["median", *("-" if m is None else f"{m:.2f}" for m in medians.values()), "", "", "", ""]
    )
    print(table(["seconds", *COLUMNS, "our steps", "sb3 steps", "our probe", "sb3 probe"], lines))
    ours = medians["ours"]
    ratios = {column: ours / m for column, m in medians.items() if ours and m and column != "ours"}
    for column, ratio in ratios.items():
        print(
            f"ours / {column}: {ratio:.3f}"
            + ("   (target: at most 0.7)" if column == "sb3" else "")
        )
    return {"medians_s": medians, "ratios": ratios}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0,1,2,3,4", help="with commas between")
    parser.add_argument("--limit", type=float, default=180, help="seconds a run may take")
    parser.add_argument(
        "--equipoise", type=Path, default=HERE.parent / ".venv/bin/equipoise", metavar="COMMAND"
    )
    parser.add_argument(
        "--peers-home", type=Path, default=HERE.parent / ".peers", help="what peers/setup.sh made"
    )
    parser.add_argument("--ours", default="", metavar="ARGS", help="more arguments of our run")
    parser.add_argument(
        "--sb3", default="", metavar="ARGS", help="more arguments of peers/solve_sb3.py"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every run there")
    a = parser.parse_args()
    # runs start in folders of their own
    a.equipoise, a.peers_home = a.equipoise.absolute(), a.peers_home.absolute()
    a.seeds = [int(s) for s in a.seeds.split(",")]
    wanted = (a.equipoise, a.peers_home / "sb3/bin/python")
    if missing := [str(path) for path in wanted if not path.exists()]:
        parser.error(f"not there: {', '.join(missing)}; see benchmarks/README.md")
    results = []
    for seed in a.seeds:
        for who, solve in (("ours", solve_ours), ("sb3", solve_sb3)):
            probe = calibrate()
            with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
                try:
                    result: dict[str, Any] = solve(a, seed, Path(folder))
                except Failed as error:
                    result = {"failed": str(error)}
                    print(f"FAILED {who}, seed {seed}: {error}", file=sys.stderr, flush=True)
            results.append({"who": who, "seed": seed, "probe_before": probe, **result})
            shown = (
                f"{result['solved_s']:.2f} s, {result['env_steps']:,} steps"
                if "solved_s" in result
                else "FAILED"
            )
            print(
                f"seed {seed}  {who:5s} {shown}   probe {probe['two_core']:.1f}",
                file=sys.stderr,
                flush=True,
            )
    record = {
        "benchmark": "solve",
        "host": host(),
        "arguments": {k: str(v) for k, v in vars(a).items()},
        **show(a, results),
    }
    print(json.dumps(record))
    if a.json:
        a.json.write_text(json.dumps(record | {"runs": results}, indent=1) + "\n", encoding="utf-8")
    failures = sum("failed" in r for r in results)
    if failures:
        print(f"{failures} of {len(results)} runs FAILED", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
