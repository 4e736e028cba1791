"""Does ``auto`` take the best precision and number of threads? What it takes, against a grid that
is measured after it.

    .venv/bin/python benchmarks/choices.py --cases pong-impala,cartpole-impala [--isa AVX2]
    [--seconds 3] [--turns 2]
        [--starts 1] [--json FILE] [--page FILE.md]

A case is a recipe, with a lag of 1 where it is in lockstep. ``auto`` chooses as ``equipoise train``
does with ``--precision auto --threads auto`` (``tuning/choices.py``), ``--starts`` times. Then each
precision with each number of threads is measured as a whole run in ``--turns`` turns of
``--seconds``. ``--isa``: the whole again in a child in which oneDNN may use these instructions at
most, in place of another processor. ``--json`` adds the lines to a file; ``--page`` writes the
table of all lines in it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from equipoise import api
from equipoise.cores import usable
from equipoise.programs.fields import alter
from equipoise.runtime.session import Interrupt
from equipoise.tuning import choices, runs
from equipoise.tuning.updates import Way
from equipoise.types import Program

CASES = {
    "cartpole-impala": ("CartPole-v1", "impala"),
    "pong-impala": ("ALE/Pong-v5", "impala"),
    "halfcheetah-ppo": ("HalfCheetah-v5", "ppo"),
    "pong-dqn": ("ALE/Pong-v5", "dqn"),
    "halfcheetah-sac": ("HalfCheetah-v5", "sac"),
}
ISA = "ONEDNN_MAX_CPU_ISA"
LONGEST_S = 300.0  # of a grid
LONG = {"pong-impala": 6.0}  # times the seconds of a turn, where a batch is made in several of them
NAMES = ("precision", "threads")
PAGE = """# Precision and threads by measurement

{commands}

*auto*: what `--precision auto --threads auto` took, in the first of its starts; *chosen in*: the seconds that the choice took;
*same*: starts that took the same; *of the best*: steps/s of what it took, of the best of the grid, both measured afterwards as
whole runs (better one of the turns). *ISA*: the instructions that oneDNN may use at most (`{isa}`), in place of other
processors; "all" is this one. torch {torch}, {cores} cores, {processor}.

{table}

The grids, steps/s of whole runs:

{grids}
"""  # noqa: E501


def program(case: str) -> Program:
    env, algorithm = CASES[case]
    made = api.program(env, algorithm)
    return alter(made, max_lag=1) if made.placement.max_lag == 0 else made


def line(case: str, a: argparse.Namespace) -> dict[str, Any]:
    made, starts = program(case), list[dict[str, Any]]()
    for _ in range(a.starts):
        began = time.monotonic()
        chosen, record = choices.settled(
            made, on="process", asked=NAMES, tell=lambda text: print(text, file=sys.stderr)
        )
        starts.append(
            {
                "taken": taken(chosen),
                "seconds": round(time.monotonic() - began, 1),
                "record": record,
            }
        )
    ways = sorted(
        choices.ways_of(choices.usual(made), NAMES), key=lambda way: str(way) != starts[0]["taken"]
    )
    grid = {str(way): way.of(choices.usual(made)) for way in ways}
    with Interrupt() as interrupt:
        race = runs.raced(
            grid,
            interrupt,
            until=time.monotonic() + LONGEST_S,
            turn_s=a.seconds * LONG.get(case, 1.0),
            turns=a.turns,
            far=math.inf,
        )
    best, mine = race.best, starts[0]["taken"]
    return {
        "case": case,
        "isa": os.environ.get(ISA, "all"),
        "auto": mine,
        "seconds": starts[0]["seconds"],
        "same": [one["taken"] for one in starts].count(mine),
        "starts": starts,
        "grid": best,
        "rates": race.rates,
        "of_the_best": best.get(mine, math.nan) / max(best.values()),
        "best": max(best, key=lambda way: best[way]),
        "left_out": race.left_out,
        "at": time.strftime("%Y-%m-%d %H:%M"),
    }


def taken(made: Program) -> str:
    place = made.placement
    return str(Way(device=place.device, precision=place.precision, threads=place.threads))


def table(lines: list[dict[str, Any]]) -> str:
    out = [
        "| case | ISA | auto | chosen in | same | best of the grid | of the best |",
        "|" + " --- |" * 7,
    ]
    for one in lines:
        same = f"{one['same']} of {len(one['starts'])}"
        cells = [
            one["case"],
            one["isa"],
            one["auto"],
            f"{one['seconds']} s",
            same,
            one["best"],
            f"{one['of_the_best']:.2f}",
        ]
        out.append(f"| {' | '.join(cells)} |")
    return "\n".join(out)


def grids(lines: list[dict[str, Any]]) -> str:
    ways = list(dict.fromkeys(way for one in lines for way in one["grid"]))
    out = [f"| case | ISA | {' | '.join(ways)} |", "|" + " --- |" * (2 + len(ways))]
    for one in lines:
        rates = [f"{one['grid'][way]:,.0f}" if way in one["grid"] else "-" for way in ways]
        out.append(f"| {one['case']} | {one['isa']} | {' | '.join(rates)} |")
    return "\n".join(out)


def processor() -> str:
    found = (
        text.partition(":")[2].strip()
        for text in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in text
    )
    return next(found, "a processor without a name")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default="", help="with commas between")
    parser.add_argument("--isa", help="AVX2, AVX512_CORE, ...")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn of the grid")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--starts", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    a = parser.parse_args()
    if a.isa and os.environ.get(ISA) != a.isa:
        sys.exit(
            subprocess.run(
                [sys.executable, *sys.argv], env=os.environ | {ISA: a.isa}, check=False
            ).returncode
        )
    lines = json.loads(a.json.read_text()) if a.json and a.json.exists() else []
    for case in filter(None, a.cases.split(",")):
        one = line(case, a) | {"command": f".venv/bin/python {' '.join(sys.argv)}"}
        lines = [*(old for old in lines if (old["case"], old["isa"]) != (case, one["isa"])), one]
        print(json.dumps(one), flush=True)
        if a.json:
            a.json.write_text(json.dumps(lines, indent=1))
    print(table(lines))
    if a.page:
        commands = "\n".join(dict.fromkeys(f"    {one['command']}" for one in lines))
        a.page.write_text(
            PAGE.format(
                commands=commands,
                isa=ISA,
                torch=torch.__version__,
                cores=usable(),
                processor=processor(),
                table=table(lines),
                grids=grids(lines),
            )
        )


if __name__ == "__main__":
    main()
