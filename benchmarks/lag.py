"""What a bound on the lag costs and gives: steps/s, the lag that came of it, and the return, over
``max_lag``.

Each cell is one run: two actors of 16 CartPole envs on processes, the same number of env steps,
then 20 episodes of the last weights. The result is a table in Markdown; docs/inside/lag.md has one
with the load of its machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import host, markdown

from equipoise import api

ALGORITHMS = ("impala", "ppo", "appo")
LAGS: tuple[int | None, ...] = (0, 1, 3, None)


def measure(algorithm: str, max_lag: int | None, steps: int, seed: int) -> dict[str, Any]:
    """The summary of one run."""
    place = Path(tempfile.mkdtemp(prefix="equipoise-lag-"))
    try:
        run = api.start(
            "CartPole-v1",
            algorithm,
            recipe=False,
            on="process",
            out=place / "run",
            actors=2,
            envs_per_actor=16,
            batch=32,
            max_lag=max_lag,
            steps=steps,
            seed=seed,
            evaluate_episodes=20,
            tensorboard=False,
        )
        with run:
            for _ in run:
                pass
        assert run.summary is not None
        return run.summary
    finally:
        shutil.rmtree(place, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS), help="with commas between")
    parser.add_argument("--steps", type=int, default=200_000, help="env steps of a run")
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    lines = []
    for algorithm in a.algorithms.split(","):
        for max_lag in LAGS:
            load, began = os.getloadavg()[0], time.monotonic()
            did = measure(algorithm, max_lag, a.steps, a.seed)
            lag, evaluation = did["lag"], did["evaluation"]
            bound = "none" if max_lag is None else str(max_lag)
            lines.append(
                [
                    algorithm,
                    bound,
                    f"{did['steps_per_s']:,.0f}",
                    f"{lag['mean']:.2f}",
                    lag["max"],
                    f"{evaluation['mean']:.0f}",
                    f"{load:.1f}",
                ]
            )
            print(" ".join(map(str, lines[-1])), f"({time.monotonic() - began:.0f} s)", flush=True)
    print(f"\n{host()}\n")
    print(
        markdown(
            ["algorithm", "max_lag", "steps/s", "mean lag", "largest lag", "return", "load before"],
            lines,
        )
    )


if __name__ == "__main__":
    main()
