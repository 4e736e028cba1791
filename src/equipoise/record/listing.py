"""The runs of a folder, a row each: what they train and what they reached. Nothing that they name is imported."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.hints import hint
from equipoise.record.described import algorithm_of, directories, env_of
from equipoise.record.directory import RunDirectory
from equipoise.record.paths import RUN
from equipoise.record.report import METRICS, read_reports

try:
    import fcntl
except ImportError:  # no locks on this platform
    fcntl = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run. ``status`` is that of its summary; before there is one "running", or "killed" where no process writes it."""

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

    @property
    def name(self) -> str:
        return str(self.path)

    def plain(self) -> dict[str, Any]:
        """The row as what JSON has, by column."""
        return {key: getattr(self, key) for key in COLUMNS}


COLUMNS = ("name", *(field.name for field in dataclasses.fields(RunRow) if field.name != "path"))


def rows(place: Path, *, damaged: list[str] | None = None) -> list[RunRow]:
    """All runs of a folder; those whose files are damaged are told of in ``damaged``."""
    found = []
    for directory in directories(place):
        try:
            found.append(row(directory))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # files that people edit and copy
            if damaged is not None:
                damaged.append(f"{directory}: {error}" if str(directory) not in str(error) else str(error))
    return found


def row(directory: Path, lines: Sequence[Mapping[str, Any]] | None = None) -> RunRow:
    """One run; ValueError, KeyError or TypeError where its files do not say what a run's files say.

    ``lines``: its reports, where they are read already.
    """
    run = RunDirectory.found(directory)
    program = run.run["program"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a summary that cannot be read is as none
        summary = run.summary()
    if summary is None and lines is None:
        lines = read_reports(directory / METRICS, damaged=[])  # of which the last one will do that can be read
    told: Mapping[str, Any] = summary or next(reversed(lines or ()), {})
    evaluation = told.get("evaluation")
    metrics = directory / METRICS
    return RunRow(
        path=directory,
        env=env_of(program),
        algorithm=algorithm_of(program),
        seed=program["schedule"].get("seed"),
        status=str(summary["status"]) if summary else ("running" if _is_written(directory) else "killed"),
        steps=int(told.get("env_steps") or told.get("updates") or 0),
        steps_per_s=told.get("steps_per_s"),
        return_mean=told.get("return_mean"),
        evaluation=None if evaluation is None else float(evaluation["mean"]),
        verdict=told.get("cause"),
        wall_s=float(told.get("wall_s") or 0.0),
        size=size_of(directory),
        changed=(metrics if metrics.is_file() else directory).stat().st_mtime,
    )


def size_of(directory: Path) -> int:
    """Bytes of the files below a folder; a file with several names counts once, and one that goes meanwhile does not."""
    found: dict[tuple[int, int], int] = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                stat = os.stat(os.path.join(folder, name), follow_symlinks=False)
                found[stat.st_dev, stat.st_ino] = stat.st_size
    return sum(found.values())


def _is_written(directory: Path) -> bool:
    """Does a process hold the lock of a run that writes?"""
    if fcntl is not None:
        fd = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
    return False


def chosen(found: Sequence[RunRow], conditions: Sequence[str], sort: str) -> list[RunRow]:
    """The rows that fit all ``conditions`` ("KEY=VALUE", "KEY>NUMBER", "KEY<NUMBER"), sorted by a column.

    "-KEY" sorts downwards; rows without the number come last. ValueError for an unknown column.
    """
    down, key = sort.startswith("-"), _column(sort.removeprefix("-"), "--sort")
    kept = [row for row in found if all(_fits(row, one) for one in conditions)]
    there = [row for row in kept if getattr(row, key) is not None]
    rest = [row for row in kept if getattr(row, key) is None]
    return sorted(there, key=lambda row: getattr(row, key), reverse=down) + rest


def _column(key: str, where: str) -> str:
    if key not in COLUMNS:
        raise ValueError(f"{where}: unknown column {key!r}{hint(key, COLUMNS)}")
    return key


def _fits(row: RunRow, condition: str) -> bool:
    at = min((condition.index(sign) for sign in "=<>" if sign in condition), default=0)
    if not at:
        raise ValueError(f"--where {condition!r}: expected KEY=VALUE, KEY>NUMBER or KEY<NUMBER, such as status=solved")
    sign, wanted = condition[at], condition[at + 1 :].strip()
    value = getattr(row, _column(condition[:at].strip(), f"--where {condition!r}"))
    if sign == "=":
        return str(value) == wanted or str(value).lower() == wanted.lower()
    try:
        number = float(wanted)
    except ValueError:
        raise ValueError(f"--where {condition!r}: expected a number after {sign!r}, got {wanted!r}") from None
    if isinstance(value, str):
        raise ValueError(f"--where {condition!r}: expected a column of numbers, got {condition[:at].strip()!r}")
    return value is not None and (value > number if sign == ">" else value < number)


def remove(directory: Path) -> None:
    """Remove a run directory; ValueError for one that is none."""
    if not (directory / RUN).is_file():
        raise ValueError(f"{directory}: expected a run directory, got one without {RUN}")
    shutil.rmtree(directory)
