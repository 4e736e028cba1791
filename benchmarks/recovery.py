"""Does a run that lost half of its actors again and again come back to its speed?

One run of the chaos rulings (4 actors): updates in ``--seconds`` before, then half of the actors
SIGKILLed every 5 s for ``--kill-for`` seconds and one SIGSTOPped, then updates in ``--seconds``
after. Each window stands beside a calibration loop of one process before and after it, whose mean
it is divided by. Prints one JSON line; "value" is after / before.

    .venv/bin/python benchmarks/recovery.py
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from harness import host, spin

from equipoise.chaos.attack import Attack

KILL_EVERY_S = 5.0
WINDOWS = 6  # of which the median counts


def rate(attack: Attack, seconds: float) -> list[float]:
    """Updates a second in each of ``WINDOWS`` equal parts, over the turns of the loop beside it."""
    rates = []
    for _ in range(WINDOWS):
        before = spin(1, 0.3)
        began, count = time.monotonic(), attack.beats.count
        attack.go_on(seconds / WINDOWS)
        rates.append(
            (attack.beats.count - count)
            / (time.monotonic() - began)
            / ((before + spin(1, 0.3)) / 2)
        )
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--kill-for", type=float, default=60.0)
    parser.add_argument("--actors", type=int, default=4)
    options = parser.parse_args()
    kills, n = 0, options.actors
    with tempfile.TemporaryDirectory(prefix="equipoise-recovery-") as place:
        attack = Attack(Path(place), limit_s=120.0 + 3 * options.seconds + 4 * options.kill_for)
        with attack:
            attack.train("schedule.checkpoint_every=0", actors=n, updates=500)
            before = rate(attack, options.seconds)
            end = time.monotonic() + options.kill_for
            while time.monotonic() < end:
                due = time.monotonic() + KILL_EVERY_S
                names = [f"actor {(n // 2 * kills + i) % n}" for i in range(n // 2)]
                pids = [attack.signal(name, signal.SIGKILL) for name in names]
                for name, pid in zip(names, pids, strict=True):
                    attack.replaced(name, pid)
                attack.go_on(due - time.monotonic())
                kills += 1
            attack.replaced(f"actor {n - 1}", attack.signal(f"actor {n - 1}", signal.SIGSTOP))
            attack.wait(lambda: len(attack.workers()) == n + 1, "all actors to be there")
            attack.updates(200)
            after = rate(attack, options.seconds)
            attack.end()
            rows, queue = attack.rows(), attack.summary["rows"]
    value = statistics.median(after) / statistics.median(before)
    result = {
        "value": round(value, 3),
        "before": [round(r, 2) for r in before],
        "after": [round(r, 2) for r in after],
        "rounds_of_kills": kills,
        "rows": dataclasses.asdict(rows),
        "queue": queue,
        "host": host(),
    }
    print(json.dumps(result))
    if rows.lost or rows.duplicated or rows.torn:
        sys.exit("rows were lost, duplicated or torn")


if __name__ == "__main__":
    main()
