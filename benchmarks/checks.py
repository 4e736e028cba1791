"""What the checks of an env's rows and the log for capsules cost a step.

    .venv/bin/python benchmarks/checks.py [--rounds 60] [--steps 500]

Two envs of the same seeds, one with the checks and the log, one with both replaced by nothing, are
stepped in turn with the same actions, which keep the pole up as those of a trained policy do: A B A
B. Printed are medians over rounds of CPU microseconds a step (of all streams), and the median of
the ratios within rounds; then what the two calls cost alone, in a loop on the same rows, as a share
of a step: a per cent of a step is less than what a busy host moves a round by.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np

from equipoise.envs import make
from equipoise.envs.failures.capsule import Failures
from equipoise.types import EnvFactory

CASES = (("python:CartPole-v1", 64), ("CartPole-v1", 512))


def made(target: str, streams: int, checked: bool) -> Any:
    env: Any = make(
        EnvFactory(target=target), streams=np.arange(streams), seed=0, failures=Failures()
    )
    if not checked:
        env.checks.fine = lambda begins=False: True
        if hasattr(env, "log"):
            env.log.act = lambda action: None
            env.log.begin = lambda i, one, seed=None: None
    env.recv()
    return env


def steps_for(env: Any, actions: Any) -> float:
    """CPU microseconds a step."""
    stream, start = env.ts.stream, time.thread_time()
    for action in actions:
        env.send(action, stream)
        env.recv()
    return (time.thread_time() - start) / len(actions) * 1e6


def recorded(target: str, streams: int, steps: int) -> list[Any]:
    """Actions that balance: towards where the pole falls, one in twenty at random."""
    rng, env, actions = np.random.default_rng(0), made(target, streams, True), []
    for _ in range(steps):
        good = (env.ts.obs[:, 2] + 0.5 * env.ts.obs[:, 3] > 0).astype(np.int64)
        actions.append(np.where(rng.random(streams) < 0.05, rng.integers(0, 2, streams), good))
        env.send(actions[-1], env.ts.stream)
        env.recv()
    return actions


def alone(env: Any, actions: Any, repeat: int = 20_000) -> float:
    """CPU microseconds of the checks and the log in a step."""
    log = getattr(env, "log", None)
    start = time.thread_time()
    for i in range(repeat):
        env.checks.fine()
        if log is not None:
            log.act(actions[i % len(actions)])
    spent = time.thread_time() - start
    start = time.thread_time()
    for i in range(repeat):
        actions[i % len(actions)]
    return (spent - (time.thread_time() - start)) / repeat * 1e6


def measure(target: str, streams: int, rounds: int, steps: int) -> dict[str, Any]:
    actions = recorded(target, streams, (rounds + 1) * steps)
    envs = {checked: made(target, streams, checked) for checked in (True, False)}
    times: dict[bool, list[float]] = {True: [], False: []}
    for n in range(rounds + 1):
        for checked in (True, False) if n % 2 else (False, True):
            spent = steps_for(envs[checked], actions[n * steps : (n + 1) * steps])
            if n:  # the first warms up
                times[checked].append(spent)
    cost = statistics.median(alone(envs[True], actions) for _ in range(5))
    plain = statistics.median(times[False])
    return {
        "env": target,
        "streams": streams,
        "with_us": round(statistics.median(times[True]), 2),
        "without_us": round(plain, 2),
        "ratio": round(
            statistics.median(a / b for a, b in zip(times[True], times[False], strict=True)), 4
        ),
        "alone_us": round(cost, 2),
        "alone_share": round(cost / plain, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()
    found = [measure(target, streams, args.rounds, args.steps) for target, streams in CASES]
    for row in found:
        print(
            f"{row['env']} x {row['streams']}: {row['with_us']} us a step with, "
            f"{row['without_us']} without, "
            f"ratio {row['ratio']}; alone {row['alone_us']} us, {row['alone_share']:.2%} of a step"
        )
    print(json.dumps({"value": found}))


if __name__ == "__main__":
    main()
