"""``--seeds N``: as many runs as seeds, each a process of its own, and one summary of them."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.files import is_url, json_bytes, write_atomic
from equipoise.runtime.session import Preempted

if TYPE_CHECKING:
    from equipoise.record.listing import RunRow
    from equipoise.types import Program

PROGRAM, CHOICES, SUMMARY = "program.json", "choices.json", "seeds.json"
POLL_S = 0.1


def check_seeds(
    *, prometheus: str | None, callbacks: Sequence[str] | None, or_resume: bool, out: str | None
) -> None:
    """Raise ValueError for an option that only a single run has."""
    if prometheus is not None:
        raise ValueError("--seeds: expected no --prometheus, which serves one run, got it")
    if callbacks:
        raise ValueError("--seeds: must stand without --callback, which hears one run")
    if or_resume or is_url(out):
        raise ValueError("--seeds: expected a local --out, without --or-resume")


def train_seeds(
    program: Program,
    count: int,
    *,
    jobs: int,
    out: Path | None,
    words: Sequence[str],
    chosen: Mapping[str, Any],
) -> int:
    """Train ``count`` runs, ``jobs`` at a time, with the seeds from the program's on -> the exit
    code, the largest of theirs.

    ``words``: options of ``train`` that are no settings. ``chosen``: the record of what was
    measured for all of them. The runs lie in ``out`` as ``seed_N``, beside ``program.json`` (their
    settings), ``choices.json`` (that record) and ``seeds.json`` (their means and intervals). Ctrl-C
    ends all of them, and each is saved.
    """
    from equipoise import trust
    from equipoise.console.place import width_of
    from equipoise.console.tables import seeds_table
    from equipoise.programs.config_file import write_config
    from equipoise.programs.program import to_json
    from equipoise.record import listing
    from equipoise.record.paths import make

    place = make(out if out is not None else _default(program))
    write_config(program, place / PROGRAM)
    write_atomic(place / CHOICES, json_bytes(chosen))
    names, _ = trust.of_program(to_json(program))
    # the user typed them, or vouched for the file
    vouched = [word for _, name in names for word in ("--trust", name)]
    first = program.schedule.seed
    waiting = [
        (
            place / f"seed_{seed}",
            [
                sys.executable,
                "-m",
                "equipoise",
                "train",
                "--config",
                str(place / PROGRAM),
                "--choices",
                str(place / CHOICES),
                "--seed",
                str(seed),
                "--out",
                str(place / f"seed_{seed}"),
                *vouched,
                *words,
                *(["--quiet"] if jobs > 1 else []),
            ],
        )
        for seed in range(first, first + count)
    ]
    codes = _all(waiting, jobs, quiet="--quiet" in words)
    found = [listing.row(run) for run, _ in waiting if (run / "run.json").is_file()]
    print()
    for line in seeds_table(found, width=width_of(sys.stdout)):
        print(line)
    write_atomic(place / SUMMARY, json_bytes(_summary(found)))
    print(f"The runs are in {shlex.quote(str(place))}. Next:")
    for command in next_commands(place, program, found):
        print(f"  equipoise {command}")
    return max(codes, default=0)


def next_commands(place: Path, program: Program, found: Sequence[RunRow]) -> list[str]:
    """Commands that work on these runs: ``plot`` if an episode has ended and matplotlib is there,
    and to play one run.
    """
    from equipoise.console.terminal import has_learned, play_command

    commands = (
        [f"plot {shlex.quote(str(place))}"]
        if find_spec("matplotlib") and any(row.return_mean is not None for row in found)
        else []
    )
    played = next((row.path for row in found if has_learned(row.path)), None)
    play = "" if played is None else play_command(program).format(shlex.quote(str(played)))
    return [*commands, play] if play else commands


def _default(program: Program) -> Path:
    name = re.sub(
        r"[^A-Za-z0-9._-]+", "-", f"{program.name}-seeds-{time.strftime('%Y%m%d-%H%M%S')}"
    ).lstrip(".-")
    return Path("runs") / name


def _all(waiting: Sequence[tuple[Path, list[str]]], jobs: int, *, quiet: bool) -> list[int]:
    """Run all commands, ``jobs`` at a time -> their exit codes. What Ctrl-C or SIGTERM ends ends
    all of them.

    ``quiet``: the output of a run goes to a file next to its directory, which is named if the run
    fails.
    """
    left, running, codes = list(waiting), dict[Path, subprocess.Popen[bytes]](), list[int]()
    stop: KeyboardInterrupt | None = None
    while running or (left and stop is None):
        try:
            while left and len(running) < jobs and stop is None:
                run, command = left.pop(0)
                if not quiet:
                    print(
                        f"{'seed' if jobs == 1 else 'begin'} {run.name.rpartition('_')[2]}: {run}",
                        flush=True,
                    )
                with _printed(run).open("wb") if quiet else nullcontext() as file:
                    # In a group of its own: Ctrl-C reaches it once, from here.
                    running[run] = subprocess.Popen(
                        command, process_group=0, stdout=file, stderr=file
                    )
            for run, process in list(running.items()):
                try:
                    code = process.wait(POLL_S / len(running))
                except subprocess.TimeoutExpired:
                    continue
                del running[run]
                codes.append(code if code >= 0 else 128 - code)
                if quiet and codes[-1]:
                    print(
                        f"seed {run.name.rpartition('_')[2]}: exit code {codes[-1]}, see "
                        f"{_printed(run)}",
                        file=sys.stderr,
                    )
                elif jobs > 1 and not quiet:
                    print(f"end {run.name.rpartition('_')[2]}: exit code {codes[-1]}", flush=True)
        except KeyboardInterrupt as asked:
            stop = asked
            for process in running.values():
                process.send_signal(
                    signal.SIGTERM if isinstance(asked, Preempted) else signal.SIGINT
                )
    return codes


def _printed(run: Path) -> Path:
    return run.with_name(f"{run.name}.log")


def _summary(found: Sequence[RunRow]) -> dict[str, object]:
    from equipoise.record.interval import mean_and_half

    means: dict[str, object] = {}
    for key in ("evaluation", "return_mean"):
        values = [float(value) for row in found if (value := getattr(row, key)) is not None]
        if values:
            mean, half = mean_and_half(values)
            means[key] = {"mean": mean, "half_of_95_percent_interval": half, "seeds": len(values)}
    runs = [
        {
            "run": row.path.name,
            "seed": row.seed,
            "status": row.status,
            "steps": row.steps,
            "return_mean": row.return_mean,
        }
        | {"evaluation": row.evaluation, "wall_s": row.wall_s}
        for row in found
    ]
    return {"means": means, "runs": json.loads(json.dumps(runs))}
