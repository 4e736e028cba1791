"""Benchmark suites: training the cells that are missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.api.programs import program
from equipoise.api.tuning import OnEntry, carried_on
from equipoise.programs.config_file import write_config
from equipoise.programs.settings import convert
from equipoise.record.paths import set_aside
from equipoise.studies.executor import Progress
from equipoise.studies.history import Entry, History, Result
from equipoise.studies.kept import keep, missing
from equipoise.studies.settings import PROGRAMS, STUDY, TRIALS, StudySettings, write_study
from equipoise.studies.suite import Cell, Suite, read_suite
from equipoise.studies.tuned import found
from equipoise.types import On

FINISHED = ("paused", "done")


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The files of a suite: its own, its study, and the folder of its kept cells."""

    file: Path
    study: Path
    kept: Path


def places(file: Path, out: Path | None = None, kept: Path | None = None) -> Places:
    """Return the places of a suite; by default its kept cells are in a folder beside its file."""
    return Places(
        file=file,
        study=Path("studies") / file.stem if out is None else out,
        kept=file.with_suffix("") if kept is None else kept,
    )


def filled(
    at: Places,
    *,
    jobs: int = 1,
    trust: Sequence[str] = (),
    on_entry: OnEntry = lambda entry, history: None,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    tell: Callable[[str], object] = lambda text: None,
) -> list[Cell]:
    """Train the missing cells of a suite and keep each as it ends -> the cells that are still
    missing, since their runs failed.

    A study of the suite that was interrupted goes on.
    """
    suite = read_suite(at.file, trusted=trust)
    at.kept.mkdir(parents=True, exist_ok=True)
    _keep_ended(at, suite, tell)
    todo = missing(suite, at.kept)
    if todo and _is_over(at.study):
        if at.study.exists():
            set_aside(at.study)
        _begin(at.study, suite, todo, jobs)
    if todo:

        def kept(entry: Entry, history: History) -> None:
            on_entry(entry, history)
            if isinstance(entry, Result) and entry.state in FINISHED:
                _keep(at.study / TRIALS / entry.trial, at.kept, tell)

        carried_on(at.study, trust=trust, jobs=jobs, on_entry=kept, on_progress=on_progress)
    return missing(suite, at.kept)


def _begin(folder: Path, suite: Suite, cells: Sequence[Cell], jobs: int) -> None:
    """Write the study of these cells: its settings last, so that a kill leaves no study."""
    steps: dict[str, int] = {}
    (folder / PROGRAMS).mkdir(parents=True)
    for cell in cells:
        made = program(cell.env, cell.algorithm, settings=dict(cell.settings))
        write_config(made, folder / PROGRAMS / f"{cell.name}.json")
        steps[cell.name] = made.schedule.steps
    settings = StudySettings(
        strategy="cells",
        confirm=0,
        strategy_settings=tuple(f"{name}:{n}" for name, n in steps.items()),
        trials=len(cells),
        jobs=jobs,
        on=convert(cells[0].on, On, "on"),
        suite=suite.name,
    )
    write_study(folder, settings, None, "", {})


def _is_over(folder: Path) -> bool:
    """Has the study ended, or is there none?"""
    return not (folder / STUDY).is_file() or found(folder).history.end is not None


def _keep_ended(at: Places, suite: Suite, tell: Callable[[str], object]) -> None:
    """Keep what an earlier process trained and could not keep any more."""
    if not (at.study / STUDY).is_file():
        return
    history, todo = found(at.study).history, {cell.name for cell in missing(suite, at.kept)}
    for trial in history:
        if trial.state in FINISHED and trial.name in todo:
            _keep(at.study / TRIALS / trial.name, at.kept, tell)


def _keep(run: Path, folder: Path, tell: Callable[[str], object]) -> None:
    try:
        keep(run, folder)
    except ValueError as error:
        tell(f"{run.name}: it is not kept: {error}")
