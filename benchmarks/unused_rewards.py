"""What the mechanism of learned rewards costs a run whose reward is the env's own.

    .venv/bin/python benchmarks/unused_rewards.py [--steps 40000]

A run on one thread, with clocks around the calls that the learner makes to its sum of rewards. Time
of the last step of the sum (scaling, clipping), which every run has, is not counted. The figure is
the share of the CPU time of the whole training loop, so other programs on the machine do not matter
much.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from equipoise import api
from equipoise.learners.reward_sum import RewardSum
from equipoise.rewards.step import RewardStep

CASES = {"ppo": "CartPole-v1", "sac": "Pendulum-v1"}
METHODS = ("collect", "__call__", "heads", "learn", "steer", "metrics")


def timed(owner: type, name: str, spent: list[int], sign: int) -> None:
    """Add the CPU time of each call of a method to ``spent``, times ``sign``."""
    method: Callable[..., object] = getattr(owner, name)

    def call(*args: object) -> object:
        begun = time.thread_time_ns()
        try:
            return method(*args)
        finally:
            spent.append(sign * (time.thread_time_ns() - begun))

    setattr(owner, name, call)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40_000)
    steps = parser.parse_args().steps
    spent: list[int] = []
    for name in METHODS:
        timed(RewardSum, name, spent, 1)
    for name in ("rewards", "absorb"):
        timed(RewardStep, name, spent, -1)
    for algorithm, env in CASES.items():
        spent.clear()
        with tempfile.TemporaryDirectory() as folder:
            begun = time.process_time_ns()
            api.train(
                env,
                algorithm,
                steps=steps if algorithm == "ppo" else steps // 10,
                seed=1,
                on="serial",
                evaluate_episodes=0,
                out=Path(folder) / "run",
                progress=False,
            )
            whole = time.process_time_ns() - begun
        print(
            f"{algorithm} on {env}: {sum(spent) / 1e6:.2f} ms of {whole / 1e9:.1f} s of CPU, "
            f"{sum(spent) / whole:.4%}"
        )


if __name__ == "__main__":
    main()
