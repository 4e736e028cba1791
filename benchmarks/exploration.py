"""Which bonus explores rooms: exploration.py TASK [--seeds 3] [--steps N] [--rewards env ...]

corridor   a ball in a locked room, whose key is in another room; always the same rooms
corridors  the same with four rooms in place of six, and others in each episode
tv         a room without rewards, in a corner of which there are random numbers to see

The table has the share of the last 100 episodes that took the ball, or the share of the steps of
the second half of a run at which the agent saw the random numbers. An entry of ``--rewards`` is a
sum of rewards, and settings after it, with spaces between them.
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

from curious_envs import KeyCorridor, NoisyTV

import equipoise as eq

PPO = (
    "algorithm.epochs=4",
    "algorithm.minibatches=4",
    "optimizer.learning_rate=1e-3",
    "placement.threads=1",
    "placement.precision=fp32",
)
MODULATED = "reward.rnd.modulator=5"
PLACE = "reward.episodic.key=place"
# env, its options, steps, settings, rewards
TASKS: dict[str, tuple[Any, dict[str, Any], int, tuple[str, ...], tuple[str, ...]]] = {
    "corridor": (
        KeyCorridor,
        {"layout": 0},
        160_000,
        ("algorithm.entropy=0.01",),
        ("env", "env+0.1*rnd"),
    ),
    "corridors": (
        KeyCorridor,
        {"layout": None, "rooms": 2},
        120_000,
        ("algorithm.entropy=0.05",),
        (
            "env",
            "env+0.1*rnd",
            f"env+0.02*episodic {PLACE}",
            f"env+0.02*episodic*rnd {PLACE} {MODULATED}",
        ),
    ),
    "tv": (
        NoisyTV,
        {},
        100_000,
        # normalised advantages would make the last traces of a bonus as large as the first ones
        ("algorithm.entropy=0.05", "algorithm.normalize_advantage=false"),
        (
            "env",
            "env+0.01*icm reward.icm.encoder=none",
            "env+0.01*icm",
            "env+0.01*icm reward.icm.beta=0.2",
        ),
    ),
}


def measured(a: argparse.Namespace, reward: str, seed: int) -> tuple[float, float]:
    """One run -> the share that the table has, and steps per CPU second."""
    env, options, steps, settings, _ = TASKS[a.task]
    total, *own = reward.split()
    steps, share = a.steps or steps, 0.0
    with tempfile.TemporaryDirectory(prefix="equipoise-exploration-") as place:
        program = eq.program(
            env,
            "ppo",
            env_kwargs=options,
            reward=total,
            seed=seed,
            steps=steps,
            envs_per_actor=16,
            actors=1,
            unroll=64,
            evaluate_episodes=0,
            recipe=False,
            settings=[*PPO, *settings, *own, *a.set],
        )
        began, half = time.process_time(), list[int]()
        NoisyTV.counted[:] = [0, 0]
        with eq.start(program, on="serial", out=Path(place) / "run") as run:
            for report in run:
                share = report.return_mean or 0.0
                if not half and report.env_steps >= steps / 2:
                    half = NoisyTV.counted[:]
        speed = steps / (time.process_time() - began)
    if env is NoisyTV:
        share = (NoisyTV.counted[1] - half[1]) / (NoisyTV.counted[0] - half[0])
    return share, speed


def rows(a: argparse.Namespace) -> Iterator[str]:
    yield "| reward | median | each seed | steps/CPU s |"
    yield "|---" * 4 + "|"
    for reward in a.rewards or TASKS[a.task][-1]:
        runs = []
        for seed in range(a.seeds):
            runs.append(measured(a, reward, seed))
            print(f"{reward} seed {seed}: {runs[-1]}", file=sys.stderr, flush=True)
        shares = [share for share, _ in runs]
        each = ", ".join(f"{share:.2f}" for share in shares)
        speed = statistics.median(speed for _, speed in runs)
        yield f"| `{reward}` | {statistics.median(shares):.2f} | {each} | {speed:,.0f} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--rewards", nargs="*", default=[])
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0 to N - 1")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    a = parser.parse_args()
    for row in rows(a):
        print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
