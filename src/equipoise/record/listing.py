"""The runs of a folder, a row each, with their training and their results. Nothing that they name
is imported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise.hints import hint
from equipoise.record.described import algorithm_of, checked, directories, env_of, said, settings_of
from equipoise.record.directory import RunDirectory
from equipoise.record.paths import RUN, is_locked
from equipoise.record.report import LARGEST, METRICS, read_reports
from equipoise.record.summary import SUMMARY
from equipoise.schema import Anything, Maybe, Number, Schema, Text, check


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run. ``status`` is that of its summary, "damaged", "running" or "killed"."""

    path: Path
    env: str
    algorithm: str
    seed: int | None
    status: str
    steps: int
    steps_per_s: float | None  # of the whole run, and while it goes on of its last report
    return_mean: float | None
    evaluation: float | None
    verdict: str | None  # its cause
    wall_s: float
    size: int  # bytes of its files
    changed: float  # time.time() of the last report
    settings: Mapping[str, object] = field(default_factory=dict)  # by their names in --set
    problem: str = ""  # why the summary cannot be read

    @property
    def name(self) -> str:
        return str(self.path)

    def plain(self) -> dict[str, object]:
        """The row for JSON: its columns and its settings."""
        return {key: self.value(key) for key in COLUMNS} | {"settings": self.settings}

    def value(self, key: str) -> object:
        """The value of a column, or of a setting by its name in ``--set``; None if it is absent."""
        return getattr(self, key) if key in COLUMNS else self.settings.get(key)


COLUMNS = (
    "name",
    *(
        one.name
        for one in dataclasses.fields(RunRow)
        if one.name not in ("path", "settings", "problem")
    ),
)
REAL, COUNT = Number(-LARGEST, LARGEST), Number(0, (1 << 63) - 1, whole=True)
TOLD: Schema = {  # the fields that a row takes from a summary or a report
    "env_steps?": Maybe(COUNT),
    "updates?": Maybe(COUNT),
    "wall_s?": Maybe(REAL),
    "cause?": Maybe(Text()),
    "steps_per_s?": Maybe(REAL),
    "return_mean?": Maybe(REAL),
    "evaluation?": Maybe({"mean": Maybe(REAL), "*": Anything()}),
    "*": Anything(),
}


def rows(place: Path, *, damaged: list[str] | None = None) -> list[RunRow]:
    """All runs of a folder; ``damaged`` takes a sentence for each that cannot be read."""
    found = []
    problems: list[str] = [] if damaged is None else damaged
    for directory in directories(place, problems):
        try:
            found.append(row(directory))
            if found[-1].problem:
                problems.append(found[-1].problem)
        # files that people edit and copy
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            lacks = f"expected the program of a run, got one that lacks something ({error})"
            text = str(error) if isinstance(error, OSError | ValueError) else lacks
            problems.append(text if str(directory) in text else f"{directory}: {text}")
    return found


def row(directory: Path, lines: Sequence[Mapping[str, object]] | None = None) -> RunRow:
    """One run, by its ``lines`` if they are read; ValueError, KeyError or TypeError if damaged."""
    run = RunDirectory.found(directory)
    program = checked(run.run["program"], directory / RUN)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        summary = run.summary()
    problem = str(warned[0].message) if warned else ""
    if summary is None and lines is None:
        # the last one that can be read will do
        lines = read_reports(directory / METRICS, damaged=[], last=True)
    where = SUMMARY if summary else METRICS
    unended = "running" if is_locked(directory) else "damaged" if problem else "killed"
    told: Mapping[str, Any] = check(
        summary or next(reversed(lines or ()), {}), TOLD, str(directory / where)
    )
    evaluation = told.get("evaluation")
    metrics = directory / METRICS
    return RunRow(
        path=directory,
        env=env_of(program),
        algorithm=algorithm_of(program),
        seed=program["schedule"].get("seed"),
        status=str(summary["status"]) if summary else unended,
        steps=int(told.get("env_steps") or told.get("updates") or 0),
        steps_per_s=told.get("steps_per_s"),
        return_mean=told.get("return_mean"),
        evaluation=None
        if evaluation is None or evaluation["mean"] is None
        else float(evaluation["mean"]),
        verdict=told.get("cause"),
        wall_s=float(told.get("wall_s") or 0.0),
        size=size_of(directory),
        changed=(metrics if metrics.is_file() else directory).stat().st_mtime,
        settings={"on": run.run.get("on"), **settings_of(program)},
        problem=problem,
    )


def size_of(directory: Path) -> int:
    """Bytes of the files below a folder; a file with several names counts once."""
    found: dict[tuple[int, int], int] = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                stat = os.stat(os.path.join(folder, name), follow_symlinks=False)
                found[stat.st_dev, stat.st_ino] = stat.st_size
    return sum(found.values())


def chosen(found: Sequence[RunRow], conditions: Sequence[str], sort: str) -> list[RunRow]:
    """The rows that fit all ``conditions`` ("KEY=VALUE", "KEY>NUMBER", "KEY<NUMBER"), sorted.

    "-KEY" sorts downwards; rows without a value come last. ValueError for a name that no run has.
    """
    known = [*COLUMNS, *dict.fromkeys(key for row in found for key in row.settings)]
    down, key = sort.startswith("-"), _known(sort.removeprefix("-"), known, "--sort")
    tests = [_test(one, known) for one in conditions]
    kept = [row for row in found if all(test(row) for test in tests)]
    there = [row for row in kept if row.value(key) is not None]
    rest = [row for row in kept if row.value(key) is None]
    return sorted(there, key=lambda row: _order(row.value(key)), reverse=down) + rest


def _order(value: object) -> tuple[bool, float, str]:
    return (False, value, "") if isinstance(value, int | float) else (True, 0.0, said(value))


def _known(key: str, known: Sequence[str], where: str) -> str:
    if key not in known and key not in COLUMNS:
        raise ValueError(f"{where}: unknown column {key!r}{hint(key, known)}")
    return key


def _test(condition: str, known: Sequence[str]) -> Callable[[RunRow], bool]:
    at = min((condition.index(sign) for sign in "=<>" if sign in condition), default=0)
    if not at:
        raise ValueError(
            f"--where {condition!r}: expected KEY=VALUE, KEY>NUMBER or KEY<NUMBER, such as "
            "status=solved"
        )
    sign, wanted = condition[at], condition[at + 1 :].strip()
    key = _known(condition[:at].strip(), known, f"--where {condition!r}")
    number = _number(wanted)
    if sign == "=":
        return lambda row: _same(row.value(key), wanted, number)
    if number is None:
        raise ValueError(f"--where {condition!r}: expected a number after {sign!r}, got {wanted!r}")
    limit = number

    def compared(row: RunRow) -> bool:
        if isinstance(value := row.value(key), str):
            raise ValueError(f"--where {condition!r}: expected a column of numbers, got {key!r}")
        return isinstance(value, int | float) and (value > limit if sign == ">" else value < limit)

    return compared


def _same(value: object, wanted: str, number: float | None) -> bool:
    """Is a value the wanted one? 0.001 and 1e-3 are the same number, and "—" is no value."""
    if isinstance(value, int | float) and not isinstance(value, bool) and number is not None:
        return value == number
    return said(value).lower() == wanted.lower() or (value is None and wanted.lower() == "none")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def remove(directory: Path) -> None:
    """Remove a run directory; ValueError for a directory that is no run."""
    if not (directory / RUN).is_file():
        raise ValueError(f"{directory}: expected a run directory, got one without {RUN}")
    shutil.rmtree(directory)
