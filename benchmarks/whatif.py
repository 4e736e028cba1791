"""What ``equipoise whatif`` predicts of a change, beside a run with that change.

    .venv/bin/python benchmarks/whatif.py [--real] [--seeds 1-30] [--ray 41-50] [--seconds 8]
    [--json FILE] [--page FILE]

A pair is a run as it is, the same with a change, and the run as it is again: what was predicted
from the first one's directory is compared with the second one's steps/s and mean lag. Where the
first and the third differ by over 5 % the machine was not the same, and the pair is made again, at
most ``TRIES`` times; the one whose runs differ least counts. The set-ups are those of
``bottlenecks.py`` by seed, with a change drawn at random; with ``--real`` also six of CartPole,
Pong and HalfCheetah. Those of ``--ray`` run with all actors on three nodes of a Ray cluster, which
are raylets of this machine, and of these seeds only the set-ups whose costs are sleeps.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import bottlenecks
from harness import Failed, host, markdown, ran, recorded, seeds
from matrix import OURS

import equipoise as eq

HERE = Path(__file__).resolve().parent
PATHS = f"{HERE}:{HERE.parent / 'src'}"
STEADY, TRIES = 0.05, 2
CORES = 16  # that each node says that it has
TRUST = ("outside.planted",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    name: str
    options: str
    change: dict[str, int]
    rate: float  # steps/s, roughly
    pinned: bool = False  # to one core
    on: tuple[str, ...] = ("--on", "process")


PONG = "ALE/Pong-v5 --set env.repeat_action_probability=0 --precision fp32 --threads 1"
REAL = (
    Pair(
        name="CartPole, ppo",
        rate=20_000,
        change={"max_lag": 1},
        options="CartPole-v1 --algorithm ppo --actors 2 --envs-per-actor 8 --unroll 64 --batch 16 "
        "--max-lag 0",
    ),
    Pair(
        name="CartPole, apex_dqn",
        rate=3_000,
        change={"actors": 1},
        options="CartPole-v1 --algorithm apex_dqn --actors 2 --envs-per-actor 8 --unroll 16 "
        "--max-lag 1",
    ),
    Pair(
        name="HalfCheetah, ppo",
        rate=4_000,
        change={"actors": 1},
        options="HalfCheetah-v5 --algorithm ppo --actors 2 --envs-per-actor 8 --unroll 64 --batch "
        "16 --max-lag 1",
    ),
    Pair(
        name="HalfCheetah, ppo, lockstep",
        rate=4_000,
        change={"max_lag": 2},
        options="HalfCheetah-v5 --algorithm ppo --actors 2 --envs-per-actor 8 --unroll 64 --batch "
        "16 --max-lag 0",
    ),
    Pair(
        name="Pong, ppo",
        rate=600,
        change={"actors": 2},
        options=f"{PONG} --algorithm ppo --actors 1 --envs-per-actor 8 --unroll 32 --batch 8 "
        "--max-lag 1",
    ),
    Pair(
        name="Pong, apex_dqn",
        rate=600,
        change={"actors": 2},
        options=f"{PONG} --algorithm apex_dqn --actors 1 --envs-per-actor 8 --unroll 16 --max-lag "
        "1 "
        "--set replay.capacity=20000",
    ),
)


def planted(seed: int) -> Pair:
    """A set-up, and a change of its actors or its lag."""
    one, draw = bottlenecks.setup(seed), random.Random(1000 + seed)
    words = shlex.split(one.options)
    actors, lag = int(words[words.index("--actors") + 1]), words[words.index("--max-lag") + 1]
    changes = [{"actors": actors // 2}, {"actors": 2 * actors}]
    if lag in ("0", "1", "2"):
        changes.append({"max_lag": int(lag) + draw.choice([1, 2])})
    return Pair(
        name=f"seed {seed}, {one.cause}",
        options=one.options,
        change=draw.choice(changes),
        rate=one.rate,
        pinned=one.pinned,
    )


def on_ray(numbers: range, words: Sequence[str]) -> list[Pair]:
    """Those of these seeds whose costs are sleeps. ``words``: where the cluster is."""
    pairs = [planted(seed) for seed in numbers]
    return [
        replace(one, name=f"{one.name}, Ray", on=tuple(words)) for one in pairs if not one.pinned
    ]


def run(pair: Pair, change: dict[str, int], out: Path, seconds: float) -> tuple[float, float]:
    """One run -> its steps/s and its mean lag."""
    words = shlex.split(pair.options)
    for name, value in change.items():
        words[words.index(f"--{name.replace('_', '-')}") + 1] = str(value)
    begin = [*(["taskset", "-c", "0"] if pair.pinned else []), str(OURS), "train"]
    words = [
        *begin,
        *words,
        "--steps",
        str(max(int(pair.rate * seconds), 2000)),
        "--no-recipe",
        "--quiet",
        "--no-tensorboard",
    ]
    words += ["--evaluate-episodes", "0", "--checkpoint-every", "0", *pair.on, "--out", str(out)]
    ran(words, out.parent / "log", limit_s=20 * seconds + 60, PYTHONPATH=PATHS)
    return recorded(out)[1], json.loads((out / "summary.json").read_text(encoding="utf-8"))["lag"][
        "mean"
    ]


def judged(pair: Pair, seconds: float) -> dict[str, Any]:
    tries = list[dict[str, Any]]()
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
            place = Path(folder)
            before, _ = run(pair, {}, place / "before", seconds)
            made, lag = run(pair, pair.change, place / "changed", seconds)
            after, _ = run(pair, {}, place / "after", seconds)
            found = eq.whatif(
                place / "before",
                settings={f"placement.{name}": value for name, value in pair.change.items()},
                trust=TRUST,
            )
        assert found.change is not None and found.asked is not None
        # The model is fitted on the whole first run, and told that the machine was as fast as in
        # the two around the change.
        one, gain = found.change, made / ((before + after) / 2)
        tries.append(
            {
                "pair": pair.name,
                "change": pair.change,
                "before": before,
                "predicted": one.gain,
                "gain": gain,
                "error": one.gain / gain - 1,
                "lag_predicted": found.asked.lag,
                "lag": lag,
                "covered": one.low <= gain <= one.high,
                "drift": abs(after / before - 1),
            }
        )
        if tries[-1]["drift"] <= STEADY:
            break
    return min(tries, key=lambda one: float(one["drift"]))


def page(results: list[dict[str, Any]]) -> str:
    errors = sorted(abs(one["error"]) for one in results)
    lags = sorted(
        abs(one["lag_predicted"] / one["lag"] - 1) for one in results if one["lag"] > 0.05
    )
    rows = [
        [
            one["pair"],
            ", ".join(f"{key}={value}" for key, value in one["change"].items()),
            f"{one['before']:,.0f}",
            f"{one['predicted']:.2f}",
            f"{one['gain']:.2f}",
            f"{one['error']:+.0%}",
            f"{one['lag_predicted']:.2f}",
            f"{one['lag']:.2f}",
            f"{one['drift']:.0%}",
        ]
        for one in results
    ]
    head = [
        "set-up",
        "change",
        "steps/s",
        "predicted",
        "measured",
        "error",
        "lag predicted",
        "lag",
        "drift",
    ]
    return (
        "# What-if beside what happened\n\nWritten by "
        f"`.venv/bin/python {shlex.join(sys.argv)}`. "
        f"On {host()['cpu']}, {host()['cores']} cores.\n\n"
        f"Of {len(results)} gains the median error is {statistics.median(errors):.0%}, nine of ten "
        "are within "
        f"{errors[int(len(errors) * 0.9)]:.0%}, and {sum(one['covered'] for one in results)} are "
        "in their interval. "
        f"The median error of the mean lag is {statistics.median(lags):.0%}. *Drift* is by how "
        "much the two runs around the "
        f"change differ.\n\n{markdown(head, rows)}\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="1-30", metavar="A-B", help="or none")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--ray", metavar="A-B")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    a = parser.parse_args()
    pairs = [*(REAL if a.real else ()), *map(planted, seeds(a.seeds))]
    print(host(), flush=True)
    if a.ray:
        from ray_machines import machines

        os.environ["PYTHONPATH"] = PATHS
        with machines(CORES) as cluster:
            return told([*pairs, *on_ray(seeds(a.ray), cluster.words)], a)
    return told(pairs, a)


def told(pairs: Sequence[Pair], a: argparse.Namespace) -> int:

    def made() -> Iterator[dict[str, Any]]:
        for pair in pairs:
            try:
                yield judged(pair, a.seconds)
            except (Failed, ValueError) as error:
                print(f"{pair.name}: {error}", flush=True)

    bottlenecks.told(made(), page, a.json, a.page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
