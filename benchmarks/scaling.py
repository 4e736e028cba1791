"""Ape-X with more and more actors, on a CartPole whose every step sleeps 2 ms: do steps/s grow with
them, and what ends that?

    .venv/bin/python benchmarks/scaling.py [--actors 1,2,4,8,16] [--rounds 3] [--json FILE]      # steps/s
    .venv/bin/python benchmarks/scaling.py --solve [--seeds 0,1,2,3,4] [--json FILE]             # wall time to 475
    .venv/bin/python benchmarks/scaling.py --page docs/results/ape-x.md --of FILE.json FILE.json #
    nothing: writes the page

A sleep takes no core, so sixteen actors fit on two. An actor has ``--envs`` envs, which it steps in
turn (16 ms for its 8): choosing actions takes 0.2 to 0.5 ms of a core, whatever their number, and
sixteen actors of one env each would fill two cores with that alone. Runs are free (``--max-lag
none``). A round is one unroll of every actor, and takes as long however many there are, which makes
two series of "updates a round":

- ``fixed``: ``--updates`` a round whatever the number of actors. The learner's speed is fixed: it
  makes as many updates a second beside sixteen actors as beside one, and only what writes rows into
  the replay grows.
- ``per row``: ``--updates`` a round for each actor. Every row pays for as many samples, so the
  learner would have to be sixteen times as fast: actors are added until it is not.

Steps/s are of a window (``matrix.py``'s) after a warm-up; "linear" is that over the steps/s of one
actor times the actors. The shares of time are sums over the window, the verdict is that of its last
report. ``--solve`` runs one series (``fixed``, unless ``--series "per row"`` says otherwise) with
the settings of CartPole's recipe until 20 episodes and then 100 fresh ones have a mean of 475
(``--stop-at``), from spawning the process to its end; the numbers of actors take turns within a
seed. It has fewer envs an actor, since an evaluation steps its hundred as so many machines side by
side would, which adds to every run's time.
"""  # noqa: E501

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness import Failed, calibrate, host, markdown, median, ran, table, tail
from matrix import HERE, OURS, trained

THRESHOLD = 475.0
SERIES = ("fixed", "per row")
RECORD_S = 2.0  # between two reports of a run that is not held up
STATES = ("worked", "preempted", "starved", "blocked")
# Of CartPole's recipe (recipes/classic.py), whose env is another one.
RECIPE = (
    "optimizer.learning_rate=1e-3",
    "optimizer.schedule=linear",
    "algorithm.target_every=128",
    "optimizer.max_grad_norm=10",
    "replay.capacity=100000",
    "replay.starts_at=1000",
    "replay.selector=prioritized",
)


def command(
    a: argparse.Namespace, *, actors: int, updates: int, steps: int, out: Path
) -> list[str]:
    settings = [
        *RECIPE,
        f"replay.updates={updates}",
        f"env.step_s={a.step_ms / 1000:g}",
        f"env.in_turn={a.envs}",
    ]
    return [
        *shlex.split(a.equipoise),
        "train",
        "sleepy:SleepyCartPole",
        "--algorithm",
        "apex_dqn",
        "--on",
        "process",
        "--quiet",
        "--actors",
        str(actors),
        "--envs-per-actor",
        str(a.envs),
        "--unroll",
        str(a.unroll),
        "--batch",
        "64",
        "--max-lag",
        "none",
        "--steps",
        str(steps),
        "--out",
        str(out),
        *(word for one in settings for word in ("--set", one)),
    ]


def surroundings() -> dict[str, str]:
    """Where workers find the env."""
    return {
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    }


def runs(
    a: argparse.Namespace, save: Callable[[list[dict[str, Any]]], None]
) -> list[dict[str, Any]]:
    """What each run came to, those that failed too; ``save`` gets all so far after each."""
    jobs: list[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]
    if a.solve:
        said = "{value:6.1f} s, {env_steps:,} steps, {updates:,} updates"
        jobs = [
            ({"seed": seed, "actors": n}, partial(run_solve, a, n, seed))
            for seed in a.seeds
            for n in a.actors
        ]
    else:
        said = "{value:8,.0f} steps/s  {updates_per_s:6.0f} updates/s  {verdict}"
        jobs = [
            ({"round": i, "series": series, "actors": n}, partial(run_window, a, series, n))
            for i, series, n in itertools.product(range(a.rounds), a.series, a.actors)
        ]
    results = []
    for which, job in jobs:
        probe = calibrate()
        try:
            result = job()
            told = said.format(**result)
        except Failed as error:
            result, told = {"failed": str(error)}, f"FAILED {error}"
        results.append({**which, "probe_before": probe, **result})
        save(results)
        print(
            ", ".join(f"{name} {value}" for name, value in which.items()),
            told,
            sep="  ",
            file=sys.stderr,
            flush=True,
        )
    return results


# -------------------------------------------------------------------------------------- the windows


def run_window(a: argparse.Namespace, series: str, actors: int) -> dict[str, Any]:
    """Steps/s, updates/s and shares of the window of one run; raises Failed."""
    updates = a.updates * (actors if series == "per row" else 1)
    steps = int(200 * RECORD_S * actors * 1000 / a.step_ms)  # a run has 200 reports; whole rounds
    with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
        out, log = Path(folder) / "run", Path(folder) / "log"
        words = [
            *command(a, actors=actors, updates=updates, steps=steps, out=out),
            "--set",
            "evaluation.episodes=0",
        ]
        first, last = trained(
            words, out, log, warmup=a.warmup, seconds=a.seconds, env=surroundings()
        )
        reports = [
            json.loads(line)
            for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        ]
    took, did, made = (last[key] - first[key] for key in ("wall_s", "env_steps", "updates"))
    within = [r for r in reports if first["wall_s"] < r["wall_s"] <= last["wall_s"]]
    return {
        "value": did / took,
        "updates_per_s": made / took,
        "updates_a_round": updates,
        "measured_s": round(took, 1),
        "shares": shares([r["balance"] for r in within]),
        "verdict": last["verdict"],
        "command": shlex.join(words),
    }


def shares(balances: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Of the learner's time and of all actors', over several reports; each of the two sums to 1."""
    found = {}
    for who in ("learner", "actor"):
        sums = {
            s: sum(one[s] for b in balances for name, one in b.items() if name.startswith(who))
            for s in STATES
        }
        total = sum(sums.values()) or 1.0
        found[who] = {state: round(seconds / total, 4) for state, seconds in sums.items()}
    return found


def linearity(results: Sequence[Mapping[str, Any]], series: str, actors: int) -> list[float]:
    """Steps/s over those of the fewest actors of the same round, as a share of what so many more
    would make.
    """
    found = []
    for r in results:
        if r["series"] == series and r["actors"] == actors and "value" in r:
            mine = [
                x
                for x in results
                if x["series"] == series and x["round"] == r["round"] and "value" in x
            ]
            one = min(mine, key=lambda x: int(x["actors"]))
            found.append(r["value"] / one["value"] / (actors / one["actors"]))
    return found


WINDOW_HEAD = [
    "updates a round",
    "actors",
    "steps/s",
    "linear",
    "updates/s",
    "learner busy",
    "waits",
    "actors held",
    "preempted",
    "verdict",
]


def window_lines(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Medians over rounds; the verdict is that of the last one."""
    lines = []
    for series, actors in dict.fromkeys((r["series"], r["actors"]) for r in results):
        good = [
            r for r in results if (r["series"], r["actors"]) == (series, actors) and "value" in r
        ]
        if not good:
            lines.append([series, str(actors), *["failed"] * (len(WINDOW_HEAD) - 2)])
            continue
        busy, waits, held, preempted = (
            middle([r["shares"][who][state] for r in good])
            for who, state in (
                ("learner", "worked"),
                ("learner", "starved"),
                ("actor", "blocked"),
                ("actor", "preempted"),
            )
        )
        lines.append(
            [
                f"{series}: {good[0]['updates_a_round']}",
                str(actors),
                f"{middle([r['value'] for r in good]):,.0f}",
                f"{middle(linearity(results, series, actors)):.2f}",
                f"{middle([r['updates_per_s'] for r in good]):,.0f}",
                *(f"{share:.0%}" for share in (busy, waits, held, preempted)),
                good[-1]["verdict"],
            ]
        )
    return lines


def middle(values: Sequence[float]) -> float:
    found = median(values)
    assert found is not None
    return found


# ---------------------------------------------------------------------------------------- to solved


def run_solve(a: argparse.Namespace, actors: int, seed: int) -> dict[str, Any]:
    """Wall time from spawning a run to its end, solved; raises Failed."""
    with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
        out, log = Path(folder) / "run", Path(folder) / "log"
        each = actors if a.series == ["per row"] else 1
        words = command(
            a, actors=actors, updates=a.updates * each, steps=a.steps * actors // each, out=out
        )
        words += ["--stop-at", f"{THRESHOLD:g}", "--seed", str(seed)]
        wall = ran(words, log, limit_s=a.limit, **surroundings())
        summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
        if summary["status"] != "solved":
            raise Failed(f"status {summary['status']}: {shlex.join(words)}\n{tail(log)}")
    kept = {
        key: summary[key]
        for key in (
            "solved_at_s",
            "env_steps",
            "updates",
            "steps_per_s",
            "updates_per_s",
            "verdict",
        )
    }
    return {"value": wall, **kept, "command": shlex.join(words)}


SOLVE_HEAD = [
    "actors",
    "solved",
    "seconds",
    "lowest",
    "highest",
    "steps",
    "updates",
    "over the first row's",
]


def solve_lines(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Medians over seeds; a run that did not solve it took for ever."""
    lines, first = [], None
    for actors in dict.fromkeys(r["actors"] for r in results):
        mine = [r for r in results if r["actors"] == actors]
        good = [r for r in mine if "value" in r]
        seconds = sorted(r.get("value", float("inf")) for r in mine)
        first = first or middle(seconds)
        shown = [
            f"{middle([r[key] for r in good]):,.0f}" if good else "-"
            for key in ("env_steps", "updates")
        ]
        lines.append(
            [
                str(actors),
                f"{len(good)} of {len(mine)}",
                f"{middle(seconds):.1f}",
                f"{seconds[0]:.1f}",
                f"{seconds[-1]:.1f}",
                *shown,
                f"{middle(seconds) / first:.2f}",
            ]
        )
    return lines


# ----------------------------------------------------------------------------------------- the page


def tabled(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    results = record["runs"]
    return (
        (SOLVE_HEAD, solve_lines(results))
        if record["solve"]
        else (WINDOW_HEAD, window_lines(results))
    )


def page(records: Sequence[Mapping[str, Any]]) -> str:
    out = [
        "# Ape-X: from 1 to 16 actors",
        "",
        "Written by `benchmarks/scaling.py`; its `--help` says what is measured, and how.",
        "",
    ]
    for record in records:
        where, arguments = record["host"], record["arguments"]
        probes = [r["probe_before"]["two_core"] for r in record["runs"]]
        out += [f"    .venv/bin/python benchmarks/{record['command']}", ""]
        out.append(
            f"{where['at']}, {where['cpu']}, {where['cores']} cores, Python {where['python']}; an "
            "env step of "
            f"{arguments['step_ms']} ms, {arguments['envs']} envs an actor. A loop of two "
            "processes ran at "
            f"{min(probes):.0f} to {max(probes):.0f} million turns a second before the runs."
        )
        out += ["", markdown(*tabled(record)), ""]
    return "\n".join(out)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--solve", action="store_true", help="wall time to CartPole's threshold in place of steps/s"
    )
    parser.add_argument(
        "--actors", help="with commas between; default 1,2,4,8,16, with --solve 1,16"
    )
    parser.add_argument(
        "--envs", type=int, help="of an actor, stepped in turn; default 8, with --solve 4"
    )
    parser.add_argument("--unroll", type=int, help="default 16, with --solve 8")
    parser.add_argument("--step-ms", type=float, default=2.0, help="that a step of an env sleeps")
    parser.add_argument("--updates", type=int, help="a round (``per row``: and actor); default 16")
    parser.add_argument(
        "--series", default=",".join(SERIES), help="with commas between (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20, help="the window of one run")
    parser.add_argument("--warmup", type=float, default=15)
    parser.add_argument("--seeds", default="0,1,2,3,4", help="of --solve, with commas between")
    parser.add_argument(
        "--steps", type=int, default=100_000, help="of --solve, at most; ``fixed``: for each actor"
    )
    parser.add_argument(
        "--limit", type=float, default=600, help="seconds that a run of --solve may take"
    )
    parser.add_argument("--equipoise", default=shlex.quote(str(OURS)), metavar="COMMAND")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every run there, after each"
    )
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="write the tables there")
    parser.add_argument(
        "--of",
        type=Path,
        nargs="+",
        metavar="FILE.json",
        help="run nothing: the page of what --json wrote",
    )
    a = parser.parse_args()
    if a.of and a.page:
        records = [json.loads(file.read_text(encoding="utf-8")) for file in a.of]
        a.page.write_text(page(records), encoding="utf-8")
        return 0
    if a.of:
        parser.error("--of: expected --page FILE.md beside it")
    a.actors = [int(n) for n in (a.actors or ("1,16" if a.solve else "1,2,4,8,16")).split(",")]
    a.seeds = [int(n) for n in a.seeds.split(",")]
    a.series = a.series.split(",")
    a.updates, a.envs, a.unroll = (
        a.updates or 16,
        a.envs or (4 if a.solve else 8),
        a.unroll or (8 if a.solve else 16),
    )
    if unknown := set(a.series) - set(SERIES):
        parser.error(
            f"--series: expected some of {', '.join(SERIES)}, got {', '.join(sorted(unknown))}"
        )
    record: dict[str, Any] = {
        "benchmark": "scaling",
        "solve": a.solve,
        "host": host(),
        "command": shlex.join(["scaling.py", *sys.argv[1:]]),
        "arguments": {key: str(value) for key, value in vars(a).items()},
    }

    def save(results: Sequence[Mapping[str, Any]]) -> None:
        if a.json:
            a.json.write_text(
                json.dumps(record | {"runs": results}, indent=1) + "\n", encoding="utf-8"
            )

    record |= {"runs": runs(a, save)}
    print(table(*tabled(record)))
    if a.page:
        a.page.write_text(page([record]), encoding="utf-8")
    print(
        json.dumps(
            {key: record[key] for key in ("benchmark", "host", "command")}
            | {"table": tabled(record)[1]}
        )
    )
    return int(any("failed" in r for r in record["runs"]))


if __name__ == "__main__":
    sys.exit(main())
