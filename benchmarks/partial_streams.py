"""Partial streams: what 4 of 64 streams that are 50 times slower cost an actor, for Python envs and
for EnvPool.

    .venv/bin/python benchmarks/partial_streams.py [--rounds 3] [--seconds 20] [--kinds
    python,envpool]

Every step sleeps 20 ms (a slow stream's 1 s), which takes no core. A: 60 streams, none slow. B: the
same and 4 slow ones. Both have ``partial_streams`` 4, ``max_lag`` 4, and IMPALA learning beside
them; in turn, A B A B. A rate is of rows that count: not those shown again, the seams after
episodes, and rows older than ``max_lag``. Prints the medians and their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from harness import host, run_for_json, table

HERE = Path(__file__).parent
STEP_S, FAST, SLOW, ANSWERS, WARM = 0.02, 60, 4, 4, 10
TARGETS = {"python": "slowed:Sleeper", "envpool": "envpool:CartPole-v1"}


def rate(kind: str, slow: int, seconds: float) -> float:
    """Rows that count a second; this process runs nothing else."""
    from equipoise import api

    count = FAST + slow
    made = api.program(
        TARGETS[kind],
        "slowed:Counted",
        actors=1,
        envs_per_actor=count,
        batch=count,
        unroll=20,
        max_lag=4,
        recipe=False,
        env_kwargs={"step_s": STEP_S, "slow": slow, "of": count} if kind == "python" else {},
        partial_streams=ANSWERS,
        steps=1_000_000,
        evaluate_episodes=0,
        checkpoint_every=0,
    )
    before, rows, begun, last = 0, 0.0, 0.0, 0.0
    with (
        tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder,
        api.start(made, on="process", out=folder) as run,
    ):
        for report in run:
            if not report.recorded or report.updates < WARM:
                continue
            if begun:
                rows += (report.env_steps - before) * report.metrics["real"]
            before, last, begun = report.env_steps, report.wall_s, begun or report.wall_s
            if last - begun > seconds:
                break
    return rows / (last - begun)


def in_a_process(kind: str, slow: int, seconds: float) -> float:
    words = [
        sys.executable,
        __file__,
        "--kinds",
        kind,
        "--one",
        str(slow),
        "--seconds",
        str(seconds),
    ]
    slowed = {"SLOWED": f"{STEP_S},{slow}"} if kind == "envpool" else {}
    paths = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
        said = run_for_json(
            words, Path(folder) / "log", limit_s=60 + 5 * seconds, PYTHONPATH=paths, **slowed
        )
    return float(said["value"])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--kinds", default="python,envpool")
    # so many slow streams, in a process of its own
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.one is not None:
        print(json.dumps({"value": rate(a.kinds, a.one, a.seconds)}))
        return 0
    print(host(), flush=True)
    rows = []
    for kind in a.kinds.split(","):
        found: dict[int, list[float]] = {0: [], SLOW: []}
        for _ in range(a.rounds):
            for slow, rates in found.items():
                rates.append(in_a_process(kind, slow, a.seconds))
                print(
                    f"{kind}: {FAST} streams and {slow} slow ones: {rates[-1]:,.0f} rows/s that "
                    "count",
                    flush=True,
                )
        without, among = (statistics.median(rates) for rates in found.values())
        rows.append([kind, f"{without:,.0f}", f"{among:,.0f}", f"{among / without:.2f}"])
    print(table(["envs", "without slow ones", "with 4", "ratio"], rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
