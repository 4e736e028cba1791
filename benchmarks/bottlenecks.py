"""Planted bottlenecks: is the cause named, does what is advised help, and by as much as was
predicted?

    .venv/bin/python benchmarks/bottlenecks.py [--seeds 1-40] [--seconds 10] [--json FILE] [--page
    FILE]

A set-up follows from its seed: a cause, and sizes and costs drawn at random. Costs are sleeps,
which take no core, but for "cores", whose envs compute on one core. A run that lasts so many
seconds names what holds it back; the first of its remedies that can be applied here (a setting, the
slow actor mended, two cores instead of one) is applied to a second run. Rates are between the first
and the last record of each.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Failed, host, markdown, ran, recorded, seeds
from matrix import OURS

HERE = Path(__file__).resolve().parent
SUMS = 2  # over learners, of a step of IMPALA
WITHIN = 0.15  # of the measured gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    cause: str
    # causes (equipoise/balance/verdict.py), one of which the run must name
    expected: tuple[str, ...]
    options: str
    rate: float  # steps/s, roughly: what the run's length is chosen by
    mended: str = ""  # the options without what was planted, where that is no setting
    pinned: bool = False  # to one core


def sizes(draw: random.Random) -> tuple[int, int, int]:
    """Actors, envs of each, and unroll."""
    return draw.choice([2, 4, 8]), draw.choice([4, 8, 16]), draw.choice([8, 16, 32])


def impala(actors: int, envs: int, unroll: int, lag: object, *more: str, **costs: float) -> str:
    """The options of a run whose env or algorithm has these ``costs``."""
    planted = " ".join(
        f"--set {'algorithm' if name.endswith('_us') else 'env'}.{name}={cost:.5g}"
        for name, cost in costs.items()
    )
    return (
        f"outside.planted:Slow --algorithm outside.planted:SlowIMPALA --actors {actors} "
        f"--envs-per-actor {envs} "
        f"--unroll {unroll} --batch {actors * envs} --max-lag {lag} --set algorithm.hidden=[16] "
        f"{planted} {' '.join(more)}"
    )


def sampling(draw: random.Random) -> Setup:
    actors, envs, unroll = sizes(draw)
    step_s = draw.uniform(0.004, 0.02)
    rate = actors * envs / step_s
    learn_us = draw.uniform(0.05, 0.3) / rate * 1e6
    options = impala(
        actors, envs, unroll, draw.choice([1, 2, "none"]), sleep_s=step_s, learn_us=learn_us
    )
    return Setup(cause="sampling", expected=("Sampling-bound",), rate=rate, options=options)


def learning(draw: random.Random) -> Setup:
    actors, envs, unroll = sizes(draw)
    step_s = draw.uniform(0.002, 0.006)
    rate = actors * envs / step_s * draw.uniform(0.15, 0.5)
    options = impala(
        actors, envs, unroll, draw.choice([1, 2, "none"]), sleep_s=step_s, learn_us=1e6 / rate
    )
    return Setup(cause="learning", expected=("Learning-bound",), rate=rate, options=options)


def lockstep(draw: random.Random) -> Setup:
    actors, envs, unroll = sizes(draw)
    step_s = draw.uniform(0.004, 0.02)
    rate = actors * envs / step_s
    learn_us = draw.uniform(0.5, 1.5) / rate * 1e6
    options = impala(actors, envs, unroll, 0, sleep_s=step_s, learn_us=learn_us)
    return Setup(
        cause="lockstep",
        expected=("Lockstep",),
        rate=1 / (1 / rate + learn_us / 1e6),
        options=options,
    )


def straggler(draw: random.Random) -> Setup:
    _, envs, unroll = sizes(draw)
    actors, step_s, behind = draw.choice([4, 8]), draw.uniform(0.002, 0.005), 20
    rate = actors * envs / step_s
    run, learn_us = (actors, envs, unroll, draw.choice([1, 2])), 0.2 / rate * 1e6
    options = impala(*run, sleep_s=step_s, learn_us=learn_us, behind=behind)
    mended = impala(*run, sleep_s=step_s, learn_us=learn_us)
    return Setup(
        cause="straggler",
        expected=("Straggler",),
        rate=rate / behind,
        options=options,
        mended=mended,
    )


def inference(draw: random.Random) -> Setup:
    _, envs, unroll = sizes(draw)
    actors, step_s = draw.choice([4, 8]), draw.uniform(0.002, 0.004)
    rate = actors * envs / step_s * draw.uniform(0.15, 0.4)
    options = impala(
        actors,
        envs,
        unroll,
        draw.choice([1, 2]),
        "--inference central",
        sleep_s=step_s,
        act_us=1e6 / rate,
    )
    return Setup(cause="inference", expected=("Inference-bound",), rate=rate, options=options)


def cores(draw: random.Random) -> Setup:
    _, envs, unroll = sizes(draw)
    actors, work_s = draw.choice([4, 8]), draw.uniform(0.002, 0.006)
    options = impala(actors, envs, unroll, draw.choice([1, 2]), work_s=work_s)
    return Setup(
        cause="cores", expected=("CPU-bound",), rate=envs / work_s, options=options, pinned=True
    )


def limiter(draw: random.Random) -> Setup:
    actors, envs, _ = sizes(draw)
    unroll, updates, batch = draw.choice([4, 8]), draw.choice([2, 4, 8]), 32
    step_s = draw.uniform(0.002, 0.006)
    rate = actors * envs / step_s * draw.uniform(0.15, 0.5)
    item_us = 1e6 * actors * envs * unroll / rate / updates / batch
    return Setup(
        cause="limiter",
        expected=("Limiter-bound",),
        rate=rate,
        options=(
            f"outside.planted:Slow --algorithm outside.planted:SlowDQN --actors {actors} "
            f"--envs-per-actor {envs} "
            f"--unroll {unroll} --batch {batch} --max-lag {draw.choice([1, 2])} --set "
            f"env.sleep_s={step_s:.5f} "
            f"--set replay.updates={updates} --set replay.capacity=20000 --set "
            "replay.starts_at=500 "
            f"--set algorithm.learn_us={item_us:.1f} --set algorithm.hidden=[16]"
        ),
    )


def sums(draw: random.Random) -> Setup:
    actors, envs, unroll = sizes(draw)
    step_s = draw.uniform(0.002, 0.005)
    rate = actors * envs / step_s * draw.uniform(0.2, 0.5)
    sum_ms = actors * envs * unroll / rate * 1e3 / SUMS
    options = impala(actors, envs, unroll, draw.choice([1, 2]), "--learners 2", sleep_s=step_s)
    return Setup(
        cause="sums",
        expected=("All-reduce-bound",),
        rate=rate,
        options=f"{options} --set algorithm.sum_ms={sum_ms:.5g}",
    )


CAUSES: tuple[Callable[[random.Random], Setup], ...] = (
    sampling,
    learning,
    lockstep,
    straggler,
    inference,
    cores,
    limiter,
    sums,
)


def setup(seed: int) -> Setup:
    draw = random.Random(seed)
    return CAUSES[seed % len(CAUSES)](draw)


def run(
    options: str, steps: int, limit_s: float, *, pinned: bool = False
) -> tuple[float, dict[str, Any]]:
    """One run -> its steps/s, and its summary."""
    with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
        out = Path(folder) / "run"
        words = ["taskset", "-c", "0"] if pinned else []
        words += [
            str(OURS),
            "train",
            *shlex.split(options),
            "--steps",
            str(steps),
            "--no-recipe",
            "--quiet",
            "--no-tensorboard",
        ]
        words += ["--evaluate-episodes", "0", "--checkpoint-every", "0", "--out", str(out)]
        ran(
            words, Path(folder) / "log", limit_s=limit_s, PYTHONPATH=f"{HERE}:{HERE.parent / 'src'}"
        )
        _, rate = recorded(out)
        return rate, json.loads((out / "summary.json").read_text(encoding="utf-8"))


def judged(seed: int, seconds: float) -> dict[str, Any]:
    """Run a set-up, and what its first remedy makes of it."""
    one = setup(seed)
    steps = max(int(one.rate * seconds), 2000)
    limit_s = 20 * seconds + 60
    rate, summary = run(one.options, steps, limit_s, pinned=one.pinned)
    named = summary["cause"]
    found: dict[str, Any] = {
        "seed": seed,
        "cause": one.cause,
        "named": named,
        "right": named in one.expected,
        "rate": rate,
        "verdict": summary["verdict"],
    }
    others = {
        "actor 0 as fast as the others": one.mended,
        "2 cores": one.options if one.pinned else "",
    }
    top = next(
        (r for r in summary["remedies"] if r["change"].startswith("--") or others.get(r["change"])),
        None,
    )
    if top is None:
        return found | {"change": None}
    options = others.get(top["change"]) or f"{one.options} {top['change']}"
    still = one.pinned and top["change"] not in others
    after, _ = run(options, int(steps * min(top["gain"], 4.0)), limit_s, pinned=still)
    gain = after / rate
    return found | {
        "change": top["change"],
        "predicted": top["gain"],
        "gain": gain,
        "raised": gain > 1.0,
        "error": abs(top["gain"] / gain - 1),
        "covered": top["low"] <= gain <= top["high"],
        "within": abs(top["gain"] / gain - 1) <= WITHIN,
    }


def page(results: list[dict[str, Any]]) -> str:
    """The results in Markdown: the confusion of causes, and every set-up."""
    names = sorted({one["named"] for one in results})
    counts = Counter((one["cause"], one["named"]) for one in results)
    causes = sorted({one["cause"] for one in results})
    confusion = markdown(
        ["planted", *names],
        [[cause, *(str(counts[cause, name] or "") for name in names)] for cause in causes],
    )
    lines = [
        [
            str(one["seed"]),
            one["cause"],
            one["named"],
            f"{one['rate']:,.0f}",
            str(one["change"] or "-"),
            f"{one['predicted']:.2f}" if one["change"] else "-",
            f"{one['gain']:.2f}" if one["change"] else "-",
        ]
        for one in results
    ]
    every = markdown(
        ["seed", "planted", "named", "steps/s", "first remedy", "predicted", "gain"], lines
    )
    of = len(results)
    errors = sorted(one["error"] for one in results if one["change"])
    covered = sum(one["covered"] for one in results if one["change"])
    said = (
        f"Cause named in {sum(one['right'] for one in results)} of {of}; the first remedy raised "
        "steps/s in "
        f"{sum(bool(one.get('raised')) for one in results)}, and was predicted within {WITHIN:.0%} "
        "in "
        f"{sum(bool(one.get('within')) for one in results)}. Of {len(errors)} predicted gains the "
        "median error is "
        f"{errors[len(errors) // 2]:.0%}, nine of ten are within "
        f"{errors[int(len(errors) * 0.9)]:.0%}, and {covered} are in "
        "their interval."
        if errors
        else "No remedy was applied."
    )
    head = (
        "# Planted bottlenecks\n\nWritten by `.venv/bin/python benchmarks/bottlenecks.py --page "
        "docs/results/bottlenecks.md`. "
        f"What is planted follows from\nthe seed ([how](../balance.md)). On {host()['cpu']}, "
        f"{host()['cores']} cores."
    )
    return f"{head}\n\n{said}\n\n{confusion}\n\n{every}\n"


def told(
    each: Iterable[dict[str, Any]],
    page: Callable[[list[dict[str, Any]]], str],
    file: Path | None,
    place: Path | None,
) -> None:
    """Print each result as it comes and keep all in a JSON ``file``; then print their page, and
    write it to ``place``.
    """
    results = []
    for found in each:
        results.append(found)
        print(
            {key: round(x, 2) if isinstance(x, float) else x for key, x in found.items()},
            flush=True,
        )
        if file:
            file.write_text(json.dumps(results, indent=1))
    print(page(results))
    if place:
        place.write_text(page(results), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="1-40", metavar="A-B")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    a = parser.parse_args()
    print(host(), flush=True)

    def one(seed: int) -> dict[str, Any]:
        try:
            return judged(seed, a.seconds)
        except Failed as error:
            print(f"seed {seed}: {error}", flush=True)
            return {
                "seed": seed,
                "cause": setup(seed).cause,
                "named": "failed",
                "right": False,
                "rate": 0.0,
                "change": None,
            }

    told(map(one, seeds(a.seeds)), page, a.json, a.page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
