"""Does an algorithm keep what it has learned: forgetting.py [--algorithm impala] [--seeds 20]
[--out PAGE]

Each run goes on to twice the steps that usually solve its env, with evaluations of fresh episodes
beside training. Two numbers tell: the last evaluation, and the worst one after the first success.
Without ``--out`` the page is printed. A page that is there already keeps what stands above its
figures.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from harness import evaluations

FIGURES = "## Figures"  # where the part of the page begins that this script writes
# success, and the steps of a run
ENVS = {"CartPole-v1": (475.0, 400_000), "Acrobot-v1": (-95.0, 1_000_000)}


@dataclass(frozen=True)
class Run:
    """One run: where it ran, and its evaluations as (env steps, mean)."""

    env: str
    on: str
    lag: int
    seed: int
    evaluations: list[tuple[int, float]]

    @property
    def last(self) -> float:
        return self.evaluations[-1][1]

    @property
    def solved(self) -> int | None:
        """Env steps of the first success."""
        return next((step for step, mean in self.evaluations if mean >= ENVS[self.env][0]), None)

    @property
    def worst(self) -> float | None:
        """The worst evaluation from the first success on."""
        return (
            None
            if self.solved is None
            else min(mean for step, mean in self.evaluations if step >= self.solved)
        )


def trained(a: argparse.Namespace, env: str, on: str, lag: int, seed: int, out: Path) -> Run:
    """One run to its end; RuntimeError with what it printed where it fails."""
    settings = [
        word
        for one in (*a.set, f"evaluation.every={ENVS[env][1] // 25}")
        for word in ("--set", one)
    ]
    command = [
        *shlex.split(a.equipoise),
        "train",
        env,
        "--algorithm",
        a.algorithm,
        "--on",
        on,
        "--max-lag",
        str(lag),
        "--seed",
        str(seed),
        "--steps",
        str(ENVS[env][1]),
        "--evaluate-episodes",
        "20",
        "--quiet",
        "--no-tensorboard",
        "--out",
        str(out),
        *settings,
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return Run(env, on, lag, seed, sorted(evaluations(out).items()))


def page(runs: list[Run], command: str) -> Iterator[str]:
    """Markdown: a row for each env, runtime and lag, then one for each run."""
    yield from (FIGURES, "", "`worst`: from the first success on.", "", f"    {command}", "")
    yield from (
        "| env | on | lag | runs | solved | last: median | last: worst | worst after success: "
        "median | worst |",
        "|---" * 9 + "|",
    )
    for env, on, lag in dict.fromkeys((run.env, run.on, run.lag) for run in runs):
        some = [run for run in runs if (run.env, run.on, run.lag) == (env, on, lag)]
        last, worst = (
            [run.last for run in some],
            [run.worst for run in some if run.worst is not None],
        )
        after = f"{statistics.median(worst):.0f} | {min(worst):.0f}" if worst else "— | —"
        ends = f"{statistics.median(last):.0f} | {min(last):.0f}"
        yield f"| {env} | {on} | {lag} | {len(some)} | {len(worst)} | {ends} | {after} |"
    yield from (
        "",
        "| env | on | lag | seed | first success | worst after it | last |",
        "|---" * 7 + "|",
    )
    for run in runs:
        solved, worst_ = (
            ("—", "—") if run.worst is None else (f"{run.solved:,}", f"{run.worst:.0f}")
        )
        yield (
            f"| {run.env} | {run.on} | {run.lag} | {run.seed} | {solved} | {worst_} | "
            f"{run.last:.0f} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--equipoise", default="equipoise", help="how equipoise is called")
    parser.add_argument("--algorithm", default="impala")
    parser.add_argument("--envs", nargs="*", choices=tuple(ENVS), default=list(ENVS))
    parser.add_argument(
        "--on", nargs="*", choices=("serial", "process"), default=["serial", "process"]
    )
    parser.add_argument("--lags", nargs="*", type=int, default=[0, 1])
    parser.add_argument("--seeds", type=int, default=20, help="seeds 0 to N - 1")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings besides the recipe's"
    )
    parser.add_argument("--out", type=Path, help="the page to write")
    a = parser.parse_args()
    runs = []
    with (
        tempfile.TemporaryDirectory(prefix="equipoise-forgetting-") as place,
        ThreadPoolExecutor(a.jobs) as pool,
    ):
        todo = list(product(a.envs, a.on, a.lags, range(a.seeds)))
        for run in pool.map(lambda i: trained(a, *todo[i], Path(place) / str(i)), range(len(todo))):
            runs.append(run)
            print(
                f"{run.env} {run.on} lag {run.lag} seed {run.seed}: solved at {run.solved}, worst "
                f"{run.worst}, last {run.last}",
                file=sys.stderr,
                flush=True,
            )
    text = "\n".join(
        [*page(runs, "python benchmarks/forgetting.py " + shlex.join(sys.argv[1:])), ""]
    )
    if a.out is None:
        print(text)
    else:
        above = (
            a.out.read_text(encoding="utf-8").partition(FIGURES)[0]
            if a.out.exists()
            else "# Forgetting\n\n"
        )
        a.out.write_text(above + text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
