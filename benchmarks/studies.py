"""What studies cost and what they find, on a quiet machine of two cores.

python benchmarks/studies.py overhead     a study's wall time over that of its trials
python benchmarks/studies.py start        the first trial of ``tune``, after ``train``'s first step
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

import equipoise as eq
from equipoise.studies.history import GoOn, Result, Start
from equipoise.studies.journal import Journal, read_journal, replayed
from equipoise.studies.statistics import iqm

SMALL = {"actors": 1, "envs_per_actor": 8, "evaluate_episodes": 0}
RATE = {"optimizer.learning_rate": "log:1e-5..1e-1"}
GOAL = -95.0  # of Acrobot


def overhead(place: Path, trials: int = 100) -> None:
    began = time.perf_counter()
    study = eq.tune(
        "CartPole-v1", "ppo", space=RATE, strategy="random", trials=trials, confirm=0,
        out=place / "study", steps=12_000, **SMALL,
    )  # fmt: skip
    wall = time.perf_counter() - began
    worked = sum(one.seconds for one in study.trials)
    print(f"{trials} trials of {worked / trials:.2f} s: {wall:.1f} s, {wall / worked - 1:+.1%}")


def start(place: Path, rounds: int = 3) -> None:
    """From the command to the first report of a run."""
    for number in range(rounds):
        took = []
        for words, file in (
            (["train", "--out"], "train/metrics.jsonl"),
            (
                ["tune", "--space", "algorithm.gamma=0.9..0.99", "--trials", "1", "--confirm", "0", "--out"],
                "tune/trials/trial_0000/metrics.jsonl",
            ),
        ):  # fmt: skip
            out = place / str(number) / file.partition("/")[0]
            command = [
                sys.executable,
                "-m",
                "equipoise",
                words[0],
                "CartPole-v1",
                *words[1:],
                str(out),
            ]
            began = time.perf_counter()
            process = subprocess.Popen([*command, "--on", "serial", "--steps", "1M", "--quiet"])
            path = place / str(number) / file
            while not (path.is_file() and path.stat().st_size):
                time.sleep(0.01)
            took.append(time.perf_counter() - began)
            process.kill()
            process.wait()
        print(f"train {took[0]:.2f} s, tune {took[1]:.2f} s, {took[1] - took[0]:+.2f} s")


def journal(place: Path) -> None:
    place.mkdir(exist_ok=True)
    file = Journal(place)
    for number in range(5_000):
        name = f"trial_{number}"
        file.append([Start(trial=name, settings={"a": 0.1}, to=100, reason="a reason " * 8)])
        file.append([Result(trial=name, steps=100, state="paused", score=1.0)])
        if number % 2:
            file.append([GoOn(trial=name, to=200, reason="another")])
            file.append([Result(trial=name, steps=200, state="paused", score=2.0)])
    file.close()
    began = time.perf_counter()
    entries = read_journal(place)
    replayed(entries, 1)
    print(f"{len(entries):,} entries: {time.perf_counter() - began:.2f} s")


def sweep(place: Path) -> None:
    options = dict(actors=1, envs_per_actor=8, evaluate_episodes=20, steps=50_000, seed=1)
    for strategy in ("random", "asha"):
        began = time.perf_counter()
        study = eq.tune(
            "CartPole-v1", "ppo", space=RATE | {"algorithm.gamma": "0.9..0.999"}, trials=30, jobs=2,
            confirm=3 if strategy == "random" else 3, strategy=strategy, out=place / strategy,
            recipe=False, **options,
        )  # fmt: skip
        wall = time.perf_counter() - began
        assert study.best_trial is not None
        print(
            f"{strategy}: {wall:.0f} s, {sum(one.steps - one.parent_steps for one in study.trials):,} "
            f"steps, best {study.best_trial.name} {study.score:.1f} {dict(study.best_trial.settings)}, "
            f"fresh seeds {statistics.fmean(study.confirmed):.1f} {study.confirmed}"
        )


def population(place: Path, studies: int, steps: int) -> None:
    space = {
        "optimizer.learning_rate": "log:1e-5..1e-2",
        "algorithm.entropy": "log:1e-4..1e-1",
        "algorithm.clip": "0.1..0.4",
    }
    found: dict[str, list[float]] = {}
    reached: dict[str, list[float]] = {}
    for seed in range(studies):
        for strategy, settings in (("random", ()), ("pbt", {"every": steps // 10})):
            study = eq.tune(
                "Acrobot-v1", "ppo", space=space, trials=8, jobs=2, confirm=0, strategy=strategy,
                strategy_settings=settings, out=place / f"{strategy}_{seed}", seed=seed, steps=steps,
                actors=1, envs_per_actor=8, evaluate_episodes=20, recipe=False,
            )  # fmt: skip
            assert study.score is not None
            found.setdefault(strategy, []).append(study.score)
            reached.setdefault(strategy, []).append(_steps_to_goal(study))
            print(
                f"{strategy} {seed}: {study.score:.1f}, goal at {reached[strategy][-1]:,.0f}",
                flush=True,
            )
    for strategy, scores in found.items():
        print(f"{strategy}: IQM {iqm([scores]):.1f} of {scores}; goal {reached[strategy]}")


def _steps_to_goal(study: eq.Tuned) -> float:
    """Env steps of the whole study until a trial's mean training return reached the goal: eight
    members train side by side.
    """
    best = float("inf")
    for trial in study.trials:
        file = study.directory / "trials" / trial.name / "metrics.jsonl"
        for line in file.read_text().splitlines():
            report = json.loads(line)
            value = report.get("return_mean")
            if value is not None and value >= GOAL:
                best = min(best, report["env_steps"])
                break
    return best * 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("case", choices=["overhead", "start", "journal", "sweep", "population"])
    parser.add_argument("--studies", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100_000)
    given = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="studies"))
    try:
        if given.case == "population":
            population(place, given.studies, given.steps)
        else:
            {"overhead": overhead, "start": start, "journal": journal, "sweep": sweep}[given.case](
                place
            )
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
