"""Both at their defaults: the return after the same steps, and the seconds that they took, beside
Stable-Baselines3.

    .venv/bin/python benchmarks/beside_sb3.py [--cases cartpole pendulum ...] [--seeds 0,1,2,3,4]

No recipe on either side: ``equipoise train ENV --no-recipe`` and ``PPO("MlpPolicy",
ENV).learn(STEPS)``. The seeds of a case run in turn, ours and theirs. Seconds count from the start
of the process to the end of training, imports among them; ours save a checkpoint within that time,
theirs do not. The return is the mean of 100 episodes of the policy's best actions, which each side
plays by itself afterwards.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Failed, host, median, ran, run_for_json, table

HERE = Path(__file__).resolve().parent
SLOWEST = 0.7  # of their wall time


@dataclass(frozen=True)
class Case:
    env: str
    algorithm: str
    steps: int


CASES = {
    "cartpole": Case("CartPole-v1", "ppo", 100_000),
    "acrobot": Case("Acrobot-v1", "ppo", 100_000),
    "lunarlander": Case("LunarLander-v3", "ppo", 200_000),
    "pendulum": Case("Pendulum-v1", "sac", 10_000),
    "mountaincar": Case("MountainCarContinuous-v0", "sac", 10_000),
}


def train_ours(a: argparse.Namespace, case: Case, seed: int, folder: Path) -> dict[str, Any]:
    command = [
        *shlex.split(a.equipoise),
        "train",
        case.env,
        "--algorithm",
        case.algorithm,
        "--steps",
        str(case.steps),
        "--no-recipe",
        "--evaluate-episodes",
        "0",
        "--quiet",
        "--seed",
        str(seed),
        "--out",
        str(folder / "run"),
        *shlex.split(a.ours),
    ]
    seconds = ran(command, folder / "log", limit_s=a.limit)
    play = [
        *shlex.split(a.equipoise),
        "evaluate",
        str(folder / "run"),
        "--episodes",
        "100",
        "--seed",
        str(10_000 + seed),
    ]
    done = subprocess.run(play, capture_output=True, text=True, timeout=a.limit, check=False)
    found = re.search(r"return (-?[\d.,]+)", done.stdout)
    if done.returncode or not found:
        raise Failed(f"exit code {done.returncode}: {shlex.join(play)}\n{done.stdout}{done.stderr}")
    return {
        "value": float(found[1].replace(",", "")),
        "seconds": seconds,
        "command": shlex.join(command),
    }


def train_sb3(a: argparse.Namespace, case: Case, seed: int, folder: Path) -> dict[str, Any]:
    command = [
        str(a.peers_home / "sb3/bin/python"),
        str(HERE / "peers/train_sb3.py"),
        case.env,
        "--algorithm",
        case.algorithm,
        "--steps",
        str(case.steps),
        "--seed",
        str(seed),
    ]
    begin = time.time()
    found = run_for_json(command, folder / "log", limit_s=a.limit)
    return found | {"seconds": found["trained_at"] - begin, "command": shlex.join(command)}


def show(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Print one row a case; a ratio is the median of the seeds' ratios."""
    rows, found = [], {}
    for name in dict.fromkeys(one["case"] for one in results):
        whole = {one["seed"] for one in results if one["case"] == name and "value" in one}
        of = {
            who: {
                one["seed"]: one
                for one in results
                if one["case"] == name and one["who"] == who and "value" in one
            }
            for who in ("ours", "sb3")
        }
        seeds = sorted(whole & set(of["ours"]) & set(of["sb3"]))
        if not seeds:
            continue
        ours, theirs = ([of[who][seed]["value"] for seed in seeds] for who in ("ours", "sb3"))
        ratio = median([of["ours"][seed]["seconds"] / of["sb3"][seed]["seconds"] for seed in seeds])
        found[name] = {"ours": median(ours), "sb3": median(theirs), "wall": ratio, "seeds": seeds}
        case = CASES[name]
        said = [" ".join(f"{one:.0f}" for one in values) for values in (ours, theirs)]
        medians = [f"{median(values):.1f}" for values in (ours, theirs)]
        rows.append([case.env, case.algorithm, f"{case.steps:,}", *medians, *said, f"{ratio:.2f}"])
    print(
        table(
            [
                "env",
                "algorithm",
                "steps",
                "ours",
                "sb3",
                "ours, by seed",
                "sb3, by seed",
                "wall, ours / sb3",
            ],
            rows,
        )
    )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--seeds", default="0,1,2,3,4", help="with commas between")
    parser.add_argument("--limit", type=float, default=1200, help="seconds a run may take")
    parser.add_argument(
        "--equipoise", default=str(HERE.parent / ".venv/bin/equipoise"), metavar="COMMAND"
    )
    parser.add_argument(
        "--peers-home", type=Path, default=HERE.parent / ".peers", help="what peers/setup.sh made"
    )
    parser.add_argument("--ours", default="", metavar="ARGS", help="more arguments of our runs")
    parser.add_argument("--only", choices=["ours", "sb3"], help="run one side alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every run there")
    a = parser.parse_args()
    a.peers_home = a.peers_home.absolute()  # runs start in folders of their own
    if a.only != "ours" and not (python := a.peers_home / "sb3/bin/python").exists():
        parser.error(f"not there: {python}; see benchmarks/README.md")
    results: list[dict[str, Any]] = []
    for name in a.cases:
        for seed in [int(s) for s in a.seeds.split(",")]:
            for who, train in (("ours", train_ours), ("sb3", train_sb3)):
                if a.only not in (None, who):
                    continue
                with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
                    try:
                        result = train(a, CASES[name], seed, Path(folder))
                        said = f"return {result['value']:.1f} after {result['seconds']:.1f} s"
                    except Failed as error:
                        result, said = {"failed": str(error)}, f"FAILED: {error}"
                results.append({"case": name, "who": who, "seed": seed, **result})
                print(f"{name} seed {seed} {who:4} {said}", file=sys.stderr, flush=True)
    record = {"benchmark": "beside_sb3", "host": host(), "found": show(results)}
    print(json.dumps(record))
    if a.json:
        a.json.write_text(json.dumps(record | {"runs": results}, indent=1) + "\n", encoding="utf-8")
    return 1 if any("failed" in one for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())
