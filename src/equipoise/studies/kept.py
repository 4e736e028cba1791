"""Kept cells: each finished run of a suite as one small JSON file, from which its page is made."""

from __future__ import annotations

import hashlib
import itertools
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from equipoise.files import parse_json, plain, read_bounded, write_atomic
from equipoise.hints import shortened
from equipoise.record.described import algorithm_of, checked, env_of, settings_of
from equipoise.record.directory import RunDirectory
from equipoise.record.paths import RUN, is_locked
from equipoise.record.report import METRICS, all_made, read_reports, step_of
from equipoise.record.summary import SUMMARY
from equipoise.schema import Anything, Each, Items, Maybe, Number, Schema, Text, check
from equipoise.studies.suite import Cell, Suite, cell_name, trained_key

LARGEST_FILE = 30_000  # bytes
MOST_POINTS = 200  # of a learning curve
FINISHED = ("completed", "solved")
COUNT, REAL = Number(0, (1 << 63) - 1, whole=True), Number(-1e100, 1e100)
SHORT, SECONDS = Text(200), Number(0, 1e12)
EVALUATION = {"mean": REAL, "std": Number(0, 1e100), "episodes": Number(1, 10**9, whole=True)}
RUN_SCHEMA: Schema = {
    "versions?": Maybe(Each(Anything())),
    "host?": Maybe(Each(Anything())),
    "*": Anything(),
}
ENDED: Schema = {  # of a summary
    "evaluation": EVALUATION | {"*": Anything()},
    "env_steps": COUNT,
    "updates": COUNT,
    "wall_s": SECONDS,
    "*": Anything(),
}
SCHEMA: Schema = {
    "name": SHORT,
    "env": SHORT,
    "algorithm": SHORT,
    "seed": COUNT,
    "on": SHORT,
    "status": Text(among=FINISHED),
    "evaluation": EVALUATION,
    "steps": COUNT,
    "seconds": SECONDS,
    "settings_sha256": Text(64),
    "equipoise": SHORT,
    "commit": Maybe(SHORT),
    "machine": SHORT,
    "settings": Each(Anything(), 1_000),
    "curve": {"steps": Items(COUNT, MOST_POINTS), "returns": Items(REAL, MOST_POINTS)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A finished cell, as its file has it."""

    name: str
    env: str
    algorithm: str
    seed: int
    status: str
    score: float  # mean return of the evaluation at the end
    std: float  # over its episodes
    episodes: int
    steps: int
    seconds: float
    settings_sha256: str  # of all settings that it was trained with, but its seed
    equipoise: str
    commit: str | None
    machine: str
    curve: tuple[tuple[int, ...], tuple[float, ...]]  # steps, mean return of the last 100 episodes


def keep(run_directory: Path, folder: Path) -> Path:
    """Write a finished run as a small file named after its cell, and return the file.

    The same run gives the same bytes.

    Raises:
        ValueError: The run has not ended, failed, was interrupted, or has no evaluation of its last
            weights; or its settings do not fit into the file.
    """
    found = RunDirectory.found(run_directory)
    check(found.run, RUN_SCHEMA, str(run_directory / RUN))
    program = checked(found.run["program"], run_directory / RUN)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a damaged summary is as good as none
        summary = found.summary()
    lines = read_reports(run_directory / METRICS, damaged=[])
    if (problem := _unfinished(run_directory, summary, lines)) or summary is None:
        raise ValueError(f"{run_directory}: must be a finished run, got one {problem}; resume it")
    check(summary, ENDED, str(run_directory / SUMMARY))
    env, algorithm, settings = env_of(program), algorithm_of(program), settings_of(program)
    seed = program["schedule"].get("seed")
    versions, host = found.run.get("versions") or {}, found.run.get("host") or {}
    data = plain(
        {
            "name": cell_name(env, algorithm, seed),
            "env": env,
            "algorithm": algorithm,
            "seed": seed,
            "on": found.run.get("on"),
            "status": summary["status"],
            "evaluation": {key: summary["evaluation"][key] for key in ("mean", "std", "episodes")},
            "steps": step_of(summary),
            "seconds": round(summary["wall_s"], 3),
            "settings_sha256": _hash(settings),
            "equipoise": versions.get("equipoise"),
            "commit": found.run.get("commit"),
            # without its name, since people publish these files
            "machine": f"{host.get('platform')}, {host.get('cores')} cores",
            "settings": settings,
            "curve": _curve(lines),
        }
    )
    check(data, SCHEMA, str(run_directory))
    # a line for each key, and not for each point of the curve
    rows = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in data.items())
    text = f"{{\n{rows}\n}}\n".encode()
    if len(text) > LARGEST_FILE:
        raise ValueError(
            f"{run_directory}: must fit into {LARGEST_FILE:,} bytes as a cell, got {len(text):,}; "
            "its settings are long"
        )
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{data['name']}.json"
    write_atomic(file, text)
    return file


def read_kept(folder: Path, suite: Suite, *, notes: list[str] | None = None) -> dict[str, Kept]:
    """Read the kept cells of a suite by name, in its order.

    A file that is damaged, or of a run with other settings than the suite's, is left out;
    ``notes`` takes a sentence for each.
    """
    found: dict[str, Kept] = {}
    for cell in suite.cells:
        file = folder / f"{cell.name}.json"
        try:
            if file.exists():
                found[cell.name] = _read(file, cell)
        except (OSError, ValueError) as error:
            if notes is not None:
                notes.append(f"{error}; the file is left out")
    return found


def missing(suite: Suite, folder: Path) -> list[Cell]:
    """Return the cells of a suite that have no file in a folder that counts, in its order."""
    there = read_kept(folder, suite)
    return [cell for cell in suite.cells if cell.name not in there]


def _unfinished(
    place: Path, summary: Mapping[str, object] | None, lines: Sequence[Mapping[str, object]]
) -> str:
    """Return what a run lacks; "" for a finished one.

    A summary is there before the last evaluation, so it alone proves nothing.
    """
    if is_locked(place):
        return "that is still running"
    if summary is None:
        return "without a summary"
    if summary["status"] not in FINISHED:
        return f"that ended as {summary['status']!r}"
    last = lines[-1] if lines else {}
    evaluation, stopped = summary.get("evaluation"), last.get("evaluation")
    if not (isinstance(evaluation, Mapping) and isinstance(stopped, Mapping) and last["final"]):
        return "without its last evaluation"
    if summary["status"] == "completed" and (
        stopped.get("env_steps") != last["env_steps"] or not all_made(summary)
    ):
        return "whose last evaluation is of earlier weights"
    return ""


def _curve(lines: Sequence[Mapping[str, object]]) -> dict[str, list[float]]:
    """Return the training returns over steps, at no more than ``MOST_POINTS`` of them."""
    by_step = {step_of(one): one.get("return_mean") for one in lines}
    points = [
        (at, value) for at, value in sorted(by_step.items()) if isinstance(value, int | float)
    ]
    chosen = np.linspace(0, len(points) - 1, min(len(points), MOST_POINTS)).round().astype(int)
    thinned = [points[i] for i in chosen.tolist()]
    return {
        "steps": [step for step, _ in thinned],
        "returns": [float(f"{value:.6g}") for _, value in thinned],
    }


def _hash(settings: Mapping[str, object]) -> str:
    shared = {key: value for key, value in settings.items() if key != "schedule.seed"}
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()


def _read(file: Path, cell: Cell) -> Kept:
    data = check(parse_json(read_bounded(file, LARGEST_FILE), file), SCHEMA, str(file))
    settings, steps, returns = data["settings"], data["curve"]["steps"], data["curve"]["returns"]
    rising = all(a < b for a, b in itertools.pairwise(steps))
    if data["settings_sha256"] != _hash(settings) or len(steps) != len(returns) or not rising:
        raise ValueError(f"{file}: must be as it was written, got a damaged file")
    wanted = {"env": cell.env, "algorithm": cell.algorithm, "seed": cell.seed, "on": cell.on}
    for key, value in ({"name": cell.name} | wanted).items():
        if data[key] != value:
            raise ValueError(f"{file}: {key}: must be {value!r}, got {shortened(repr(data[key]))}")
    for key, value in cell.settings.items():
        if (trained := settings.get(trained_key(key))) != value:
            got = shortened(repr(trained))
            raise ValueError(f"{file}: {key}: must be {value!r} as in the suite, got {got}")
    evaluation = data["evaluation"]
    return Kept(
        **{key: data[key] for key in ("name", "env", "algorithm", "seed", "status", "steps")},
        **{key: data[key] for key in ("seconds", "settings_sha256", "equipoise", "commit")},
        machine=data["machine"],
        score=evaluation["mean"],
        std=evaluation["std"],
        episodes=evaluation["episodes"],
        curve=(tuple(steps), tuple(returns)),
    )
