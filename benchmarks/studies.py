"""What studies cost and what they find, on a quiet machine of two cores.

python benchmarks/studies.py overhead     a study's wall time over that of its trials
python benchmarks/studies.py start        the first report of ``tune`` and of ``train``
python benchmarks/studies.py journal      reading a journal of 10,000 decisions
python benchmarks/studies.py sweep        30 trials of CartPole: ASHA and all to the end
python benchmarks/studies.py population   Acrobot: PBT and random search at equal env steps
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import equipoise as eq
from equipoise.studies.history import Result, Start
from equipoise.studies.journal import Journal, read_journal, replayed
from equipoise.studies.statistics import iqm

RATE = "log:1e-5..1e-1"
GOAL = -95.0  # of Acrobot
MEMBERS = 8
RUN = ["--on", "serial", "--steps", "1M", "--quiet"]
RUNS: Any = {
    "recipe": False,
    "steps": 30_000,
    "actors": 1,
    "envs_per_actor": 16,
    "progress": False,
}
TUNE = ["--space=algorithm.gamma=0.9..0.99", "--strategy=random", "--trials=1", "--confirm=0"]


def overhead(place: Path, trials: int = 100) -> None:
    began = time.perf_counter()
    study = eq.tune(
        "CartPole-v1",
        "ppo",
        space={"optimizer.learning_rate": RATE},
        strategy="random",
        trials=trials,
        confirm=0,
        out=place / "study",
        steps=12_000,
        actors=1,
        envs_per_actor=8,
        evaluate_episodes=0,
        progress=False,
    )
    wall = time.perf_counter() - began
    worked = sum(one.seconds for one in study.trials)
    print(f"{trials} trials of {worked / trials:.2f} s: {wall:.1f} s, {wall / worked - 1:+.1%}")


def start(place: Path, rounds: int = 3) -> None:
    """From the command to the first report of a run."""
    for number in range(rounds):
        took = []
        for command, report in (
            (["train"], "metrics.jsonl"),
            (["tune", *TUNE], "trials/trial_0000/metrics.jsonl"),
        ):
            out = place / f"{command[0]}_{number}"
            words = [command[0], "CartPole-v1", *command[1:], *RUN, "--out", str(out)]
            began = time.perf_counter()
            process = subprocess.Popen([sys.executable, "-m", "equipoise", *words])
            while not ((out / report).is_file() and (out / report).stat().st_size):
                time.sleep(0.01)
            took.append(time.perf_counter() - began)
            process.kill()
            process.wait()
        print(f"train {took[0]:.2f} s, tune {took[1]:.2f} s, {took[1] - took[0]:+.2f} s")


def journal(place: Path, decisions: int = 10_000) -> None:
    file = Journal(place)
    for number in range(decisions):
        name = f"trial_{number}"
        settings = {"optimizer.learning_rate": 0.1, "algorithm.gamma": 0.99}
        file.append([Start(trial=name, settings=settings, to=100, reason="settings 1 of 10,000")])
        file.append([Result(trial=name, steps=100, state="paused", score=1.0)])
    file.close()
    began = time.perf_counter()
    entries = read_journal(place)
    read = time.perf_counter() - began
    replayed(entries, 1)
    print(f"{decisions:,} decisions, {len(entries):,} lines: read in {read:.2f} s, ", end="")
    print(f"with the history {time.perf_counter() - began:.2f} s")


def sweep(place: Path) -> None:
    """Afterwards the best settings of each are trained on five fresh seeds: does another winner
    differ by more than the seeds do?
    """
    for strategy in ("random", "asha"):
        began = time.perf_counter()
        study = eq.tune(
            "CartPole-v1",
            "ppo",
            space={"optimizer.learning_rate": RATE, "algorithm.gamma": "0.9..0.999"},
            trials=30,
            jobs=2,
            confirm=0,
            strategy=strategy,
            out=place / strategy,
            seed=1,
            evaluate_episodes=10,
            **RUNS,
        )
        wall, best = time.perf_counter() - began, study.best_trial
        assert best is not None
        steps = sum(one.steps for one in study.trials)
        print(f"{strategy}: {wall:.0f} s, {steps:,} steps, best {best.name}: {study.score}")
        print(f"  {dict(best.settings)}", flush=True)
        settings = [f"{key}={value}" for key, value in best.settings.items()]
        given = {"settings": settings, "on": "serial", "out": None, **RUNS}
        fresh = []
        for seed in range(1_000, 1_005):
            given["out"] = place / f"{strategy}_{seed}"
            fresh.append(eq.train("CartPole-v1", "ppo", seed=seed, **given))
        scores = [round(one.evaluate(episodes=20).mean, 1) for one in fresh]
        print(f"  on fresh seeds {scores}", flush=True)


def population(place: Path, studies: int, steps: int, generations: int) -> None:
    space = {
        "optimizer.learning_rate": "log:1e-5..1e-2",
        "algorithm.entropy": "log:1e-4..1e-1",
        "algorithm.clip": "0.1..0.4",
    }
    scores: dict[str, list[list[float]]] = {"random": [], "pbt": []}
    best: dict[str, list[float]] = {"random": [], "pbt": []}
    goals: dict[str, list[tuple[float, float]]] = {"random": [], "pbt": []}
    for seed in range(studies):
        for strategy in ("random", "pbt"):
            study = eq.tune(
                "Acrobot-v1",
                "ppo",
                space=space,
                trials=MEMBERS,
                jobs=2,
                confirm=0,
                strategy=strategy,
                strategy_settings={"every": steps // generations} if strategy == "pbt" else {},
                out=place / f"{strategy}_{seed}",
                recipe=False,
                seed=seed,
                steps=steps,
                actors=1,
                envs_per_actor=16,
                evaluate_episodes=10,
                progress=False,
            )
            assert study.score is not None
            best[strategy].append(study.score)
            scores[strategy].append(
                [one.score for one in study.trials if one.score is not None and one.steps >= steps]
            )
            goals[strategy].append(_steps_to_goal(study))
            first, half = goals[strategy][-1]
            print(
                f"{strategy} {seed}: best {study.score:.1f}, members {scores[strategy][-1]}, ",
                end="",
            )
            print(f"{GOAL} by one at {first:,.0f} steps, by half at {half:,.0f}", flush=True)
    for strategy, found in scores.items():
        members = float(iqm(np.array([x for study in found for x in study])[:, None]))
        first, half = (statistics.median(x) for x in zip(*goals[strategy], strict=True))
        print(
            f"{strategy}: IQM of the best {float(iqm(np.array(best[strategy])[:, None])):.1f}, ",
            end="",
        )
        print(
            f"of all members {members:.1f}; median of steps to {GOAL} by one {first:,.0f}, ", end=""
        )
        print(f"by half {half:,.0f}")


def _steps_to_goal(study: eq.Tuned) -> tuple[float, float]:
    """Env steps of the whole population until one member reached the goal, and until half had.

    Reached: the mean return of training. A clone has its parent's reports from before the cut, so
    that a member's file tells the way of its weights.
    """
    reached, reports = {}, set[int]()
    for trial in study.trials:
        lines = (study.directory / "trials" / trial.name / "metrics.jsonl").read_text().splitlines()
        found = [
            (line["env_steps"], (line.get("return_mean") or -1e9) >= GOAL)
            for line in map(json.loads, lines)
        ]
        reports |= {steps for steps, _ in found}
        reached[trial.name] = next((steps for steps, there in found if there), float("inf"))
    first = half = float("inf")
    for steps in sorted(reports, reverse=True):
        living = [one.name for one in study.trials if one.parent_steps <= steps <= one.steps]
        there = sum(reached[name] <= steps for name in living)
        first = steps if there else first
        half = steps if living and 2 * there >= len(living) else half
    return first * MEMBERS, half * MEMBERS


CASES = {"overhead": overhead, "start": start, "journal": journal, "sweep": sweep}


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("case", choices=[*CASES, "population"])
    parser.add_argument("--studies", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--generations", type=int, default=16)
    parser.add_argument("--out", type=Path, help="keep the studies there, and go on with them")
    given = parser.parse_args()
    place = given.out or Path(tempfile.mkdtemp(prefix="studies"))
    try:
        if given.case == "population":
            population(place, given.studies, given.steps, given.generations)
        else:
            CASES[given.case](place)
    finally:
        if given.out is None:
            shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
