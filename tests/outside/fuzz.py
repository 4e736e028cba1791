"""Push many examples through the doors, for as long as is asked, and print each kind of fault once.

    python -m tests.outside.fuzz [--door NAME ...] [--seconds 3600] [--examples N] [--jobs 2]
    [--seed 0] [--keep]

Exits with 1 if a fault was found. ``--seconds`` is the time of each door. Jobs share a door's
examples; each has its own seed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time

from tests.outside.doors import all_doors
from tests.outside.harness import Found, fuzz


def search(name: str, seconds: float, examples: int, seed: int) -> tuple[int, list[Found]]:
    door = next(door for door in all_doors()[0] if door.name == name)

    def shown(found: Found) -> None:
        print(
            f"{name}: {found.key}\n  example: "
            f"{json.dumps(found.example)[:2000]}\n{found.detail[-3000:]}",
            flush=True,
        )

    return fuzz(door, seconds=seconds, examples=examples, seed=seed, report=shown)


def main(argv: list[str] | None = None) -> int:
    names = [door.name for door in all_doors()[0]]
    parser = argparse.ArgumentParser(description="Push drawn examples through the doors.")
    parser.add_argument("--door", action="append", choices=names, help="all if none is named")
    parser.add_argument("--seconds", type=float, default=60.0, help="time of each door")
    parser.add_argument("--examples", type=int, default=10**9, help="examples of each door")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument(
        "--keep",
        action="store_true",
        help="write the smallest failing examples as cases of the tests",
    )
    args = parser.parse_args(argv)
    total = 0
    for name in args.door or names:
        began, share = time.monotonic(), -(-args.examples // args.jobs)
        tasks = [(name, args.seconds, share, args.seed + 7919 * job) for job in range(args.jobs)]
        with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
            parts = pool.starmap(search, tasks)
        kinds = {found.key: found for _, part in parts for found in part}
        attempts = sum(count for count, _ in parts)
        for found in kinds.values():
            if args.keep:
                print(f"kept as {found.keep()}")
        total += len(kinds)
        took = time.monotonic() - began
        print(
            f"{name}: {len(kinds)} kinds of faults in {attempts} attempts, {took:.0f} s, seed "
            f"{args.seed}",
            flush=True,
        )
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
