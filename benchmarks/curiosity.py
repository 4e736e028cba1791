"""Does a bonus find what chance does not: curiosity.py [--seeds 5] [--size 20] [--rewards env ...]

Deep sea (Osband et al. 2019, "Behaviour suite for reinforcement learning", arXiv:1908.03568): a
square of N x N cells, from the top left, one row deeper each step. Only N steps to the right, each
of which costs a little, end at the treasure: a random policy finds it once in 2^N episodes. The
action that goes right differs from cell to cell.

A run has found it if the mean return of the last 100 episodes reaches 0.5. The table has the
episodes until then, and the steps per CPU second of each sum of rewards.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import equipoise as eq

ENOUGH = 0.5  # mean return
ROWS = 40  # of an unroll
ENVS = 16
# without entropy the policy settles on one path before it has seen the others
PPO = (
    "algorithm.epochs=4",
    "algorithm.minibatches=1",
    "algorithm.entropy=0.05",
    "optimizer.learning_rate=1e-3",
    "placement.threads=1",
    "placement.precision=fp32",
)


class DeepSea(gymnasium.Env[Any, Any]):
    """The observation is the number of the cell; the last row has no way on."""

    def __init__(self, size: int = 20, seed: int = 0) -> None:
        self.size = size
        self.observation_space = spaces.Discrete(size * (size + 1))
        self.action_space = spaces.Discrete(2)
        self._right = np.random.default_rng(seed).integers(2, size=(size, size))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._row, self._column = 0, 0
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        right, reward = int(action) == self._right[self._row, self._column], 0.0
        if right:
            reward = -0.01 / self.size
            if self._row == self._column == self.size - 1:
                reward += 1.0
        self._column = min(max(self._column + (1 if right else -1), 0), self.size - 1)
        self._row += 1
        cell = self._row * self.size + self._column
        return cell, reward, self._row == self.size, False, {}


def trained(reward: str, seed: int, a: argparse.Namespace) -> tuple[int | None, float]:
    """One run -> the episodes until the treasure was found, or None, and steps per CPU second."""
    episodes, speed = None, 0.0
    with tempfile.TemporaryDirectory(prefix="equipoise-curiosity-") as place:
        program = eq.program(
            DeepSea,
            "ppo",
            env_kwargs={"size": a.size, "seed": seed},
            reward=reward,
            seed=seed,
            steps=a.episodes * a.size,
            envs_per_actor=ENVS,
            actors=1,
            unroll=ROWS,
            evaluate_episodes=0,
            recipe=False,
            settings=[*PPO, *a.set],
        )
        began = time.process_time()
        with eq.start(program, on="serial", out=Path(place) / "run") as run:
            for report in run:
                speed = report.env_steps / (time.process_time() - began)
                if episodes is None and (report.return_mean or 0.0) >= ENOUGH:
                    episodes = report.episodes
                    if a.stop:
                        break
    return episodes, speed


def rows(a: argparse.Namespace) -> Iterator[str]:
    yield "| reward | found | episodes: median | worst | steps/CPU s |"
    yield "|---" * 5 + "|"
    for reward in a.rewards:
        runs = []
        for seed in range(a.seeds):
            runs.append(trained(reward, seed, a))
            print(f"{reward} seed {seed}: {runs[-1]}", file=sys.stderr, flush=True)
        found = [episodes for episodes, _ in runs if episodes is not None]
        speed = statistics.median(speed for _, speed in runs)
        ends = f"{statistics.median(found):,.0f} | {max(found):,}" if found else "— | —"
        yield f"| `{reward}` | {len(found)} of {len(runs)} | {ends} | {speed:,.0f} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rewards", nargs="*", default=["env", "env+counts", "env+rnd"])
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 to N - 1")
    parser.add_argument("--size", type=int, default=20)
    parser.add_argument("--episodes", type=int, default=20_000)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--stop", action="store_true", help="end a run that has found it")
    a = parser.parse_args()
    print("\n".join(rows(a)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
