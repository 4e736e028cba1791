"""Does ``--inference auto`` take the faster one? Central against local inference, by net and number
of streams.

    .venv/bin/python benchmarks/inference.py [--nets mlp,nature,resnet] [--streams 8,32,128,512]
    [--seconds 24] [--turns 6]
        [--page FILE.md] [--json FILE, whose lines are not measured again]

Two actors of IMPALA at no bound of lag, CartPole for the MLP and Pong for the images
(``nature-slow``: sixteen, whose envs show images, cost nothing and sleep 5 ms a step), whose
learner learns from what they make (``tuning/runs.py``): local and central take turns, ``--turns``
in all within ``--seconds``, not counting how long they take to the first updates. The median of the
turns counts as true. Then ``auto`` chooses, by its own shorter measurement.

``of the better``: how fast what it chose is, of the faster one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from rows import PRECISION

from equipoise.algorithms.impala import IMPALA
from equipoise.programs.fields import alter
from equipoise.runtime.session import Interrupt
from equipoise.tuning import choices
from equipoise.tuning.runs import raced
from equipoise.types import (
    EnvFactory,
    EnvSource,
    EvaluationSettings,
    Placement,
    Policy,
    Precision,
    Program,
)

CARTPOLE, PONG = EnvFactory(target="CartPole-v1"), EnvFactory(target="ALE/Pong-v5")
SLOW = EnvFactory(target="idle:Idle", kwargs={"sleep_s": 0.005, "image": True})
NETS: dict[str, tuple[EnvFactory, str, Precision, int]] = {  # env, torso, precision, actors
    "mlp": (CARTPOLE, "mlp", "fp32", 2),
    "nature": (PONG, "nature", PRECISION, 2),
    "resnet": (PONG, "resnet", PRECISION, 2),
    "nature-slow": (SLOW, "nature", PRECISION, 16),
}
PAGE = """# Central or local inference

    .venv/bin/python benchmarks/inference.py --seconds 12 --turns 4 --page docs/results/inference.md

Env steps a second of training, medians of the turns, and the one that `auto` took by a measurement of its own; *of the better*:
how fast that is, of the faster one. IMPALA at no bound of lag; two actors, CartPole for the MLP and Pong for the images;
*nature-slow*: sixteen, whose envs show images and sleep 5 ms a step. torch {torch}, {cores} cores.

{table}
"""  # noqa: E501
ROWS = 2048  # of a batch, about: so that an update of the largest net takes seconds

KINDS = ("local", "central")
LONGEST_S = 300.0  # for all turns of a line


def program(net: str, streams: int) -> Program:
    env, torso, precision, actors = NETS[net]
    policy = Policy(
        algorithm=IMPALA(torso=torso), unroll=min(max(ROWS // streams, 4), 32), batch=streams
    )
    return Program(
        source=EnvSource(env=env),
        policies={"main": policy},
        placement=Placement(
            actors=actors, envs_per_actor=streams // actors, max_lag=None, precision=precision
        ),
        evaluation=EvaluationSettings(episodes=0),
    )


def line(net: str, streams: int, *, seconds: float, turns: int) -> dict[str, Any]:
    made = program(net, streams)
    runs = {kind: alter(made, inference=kind) for kind in KINDS}
    with Interrupt() as interrupt:
        race = raced(
            runs,
            interrupt,
            until=time.monotonic() + LONGEST_S,
            turn_s=seconds / turns,
            turns=turns // len(KINDS),
            far=math.inf,
        )
    if race.failed:
        raise SystemExit(f"{net}, {streams} streams: {race.failed}")
    true = {kind: statistics.median(found) for kind, found in race.rates.items()}
    chosen, record = choices.settled(alter(made, inference="auto"), on="process")
    better = max(true.values())
    return {
        "net": net,
        "streams": streams,
        **true,
        "rates": race.rates,
        "auto": chosen.placement.inference,
        "why": record["inference"]["why"],
        "of_better": true[chosen.placement.inference] / better if better else None,
    }


def table(lines: list[dict[str, Any]]) -> str:
    out = [
        "| net | streams | local steps/s | central steps/s | central / local | auto | of the "
        "better |",
        "|" + " --- |" * 7,
    ]
    for one in lines:
        local, central, share = one["local"], one["central"], one["of_better"]
        ratios = [
            f"{central / local:.2f}" if local else "-",
            one["auto"],
            "-" if share is None else f"{share:.2f}",
        ]
        out.append(
            f"| {one['net']} | {one['streams']} | {local:,.0f} | {central:,.0f} | "
            f"{' | '.join(ratios)} |"
        )
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--streams", default="8,32,128,512")
    parser.add_argument("--seconds", type=float, default=24.0)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    lines = json.loads(given.json.read_text()) if given.json and given.json.exists() else []
    known = {(one["net"], one["streams"]) for one in lines}
    for net in given.nets.split(","):
        for streams in map(int, given.streams.split(",")):
            if streams < 2 * NETS[net][3] or (net, streams) in known:  # fewer than two an actor
                continue
            lines.append(line(net, streams, seconds=given.seconds, turns=given.turns))
            print(json.dumps(lines[-1]), flush=True)
            if given.json:
                given.json.write_text(json.dumps(lines, indent=1))
    print(table(lines))
    if given.page:
        given.page.write_text(
            PAGE.format(torch=torch.__version__, cores=os.cpu_count(), table=table(lines))
        )


if __name__ == "__main__":
    main()
