"""The studies that a page shows: each is read again after its journal has changed, and a large one
less often.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from equipoise.console.place import printable
from equipoise.record.described import clipped
from equipoise.report.study_plots import Plot, plots
from equipoise.report.study_tables import facts, last_decisions, rest_text, trial_table
from equipoise.studies.journal import JOURNAL
from equipoise.studies.recorded import RecordedStudy, read_recorded, recorded_state
from equipoise.studies.settings import STUDY
from equipoise.types import Array

# what reading files raises that people edit and copy
ODD = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
REST = 10  # times that the last reading took, between two readings
STATES = {"training": "running", "interrupted": "interrupted", "ended": "completed"}


class WatchedStudy:
    """One study directory: its content, and when each of its files was last read."""

    def __init__(self, path: Path, name: str, prefix: str) -> None:
        """``prefix``: beginning of the names of its trials in the list of runs."""
        self.path, self.name, self.prefix = path, name, prefix
        self.revision = 0  # of the folder, when something of this study last changed
        self.row: dict[str, object] = {}
        self._study: RecordedStudy | None = None
        self._problem = ""
        self._read: tuple[tuple[int, int, int], ...] = ()
        self._next = 0.0  # time of the earliest next reading
        self._told: dict[str, object] | None = None  # of the present reading

    @property
    def ended(self) -> bool:
        return self._study is not None and self._study.state == "ended"

    def look(self) -> bool:
        """Read what changed; does the study look different now?"""
        began = time.monotonic()
        if began >= self._next:
            if (now := tuple(stat_of(self.path / file) for file in (STUDY, JOURNAL))) != self._read:
                self._read = now
                self._read_on()
                self._rest(began)
                return True
            if self._study is not None and self._study.state != "ended":
                state = recorded_state(self.path, self._study.history)
                if state != self._study.state:
                    self._study, self._told = replace(self._study, state=state), None
                    self.row = self._row()
                    return True
        return False

    def told(self) -> dict[str, object]:
        """All that the page shows of the study."""
        if self._told is None:
            began = time.monotonic()
            try:
                self._told = {} if self._study is None else _content(self._study)
            except ODD as error:
                self._problem = f"{self.path}: expected what a study writes, got {error}"
                self._told = {}
            self._rest(began)
        problems = [printable(self._problem)] if self._problem else []
        return {**self.row, **self._told, "path": str(self.path), "problems": problems}

    def _rest(self, began: float) -> None:
        now = time.monotonic()
        self._next = max(self._next, now + REST * (now - began))

    def _read_on(self) -> None:
        self._told = None
        try:
            self._study, self._problem = read_recorded(self.path), ""
            self.row = self._row()
        except ODD as error:
            self._study, self._problem = None, str(error)
            self.row = self._line(status="damaged", env="?", algorithm="?")

    def _row(self) -> dict[str, object]:
        """The line of a list of runs."""
        study = self._study
        assert study is not None
        best = study.best
        return self._line(
            env=clipped(study.env),
            algorithm=clipped(study.algorithm),
            status=STATES[study.state],
            strategy=clipped(study.settings.strategy, 40),
            trials=len(study.history.trials),
            score=None if best is None else best.score,
            step=study.steps,
            changed=max(at[1] for at in self._read) / 1e9 if study.state != "training" else None,
        )

    def _line(self, **said: object) -> dict[str, object]:
        return {
            "id": self.name,
            "prefix": self.prefix,
            "problems": int(bool(self._problem)),
            **said,
        }


def stat_of(file: Path) -> tuple[int, int, int]:
    """Return the inode, the time of the last change and the size of a file; zeros for none."""
    try:
        found = os.stat(file)
        return found.st_ino, found.st_mtime_ns, found.st_size
    except OSError:
        return (0, 0, 0)


def _content(study: RecordedStudy) -> dict[str, object]:
    head, rows = trial_table(study)
    return {
        "title": clipped(study.title),
        "facts": [(name, value, note) for name, value, _, note in facts(study)],
        "plots": [_plot(one) for one in plots(study)],
        "importance": list((study.importance or {}).items()),
        "head": head,
        "rows": rows,
        "trials": len(study.history.trials),
        "more": rest_text(study, len(rows)),
        "decisions": [printable(one) for one in last_decisions(study)],
    }


def _plot(plot: Plot) -> dict[str, object]:
    drawn = [line for one in plot.lines if len((line := one.drawable()).x)]
    return {
        "key": plot.key,
        "title": f"{plot.title} ({plot.x_label})" if plot.x_label else plot.title,
        "note": plot.note,
        "across": plot.across,
        "up": plot.up,
        "lines": [
            {
                "name": line.name,
                "style": line.style,
                "kind": line.kind,
                "faint": line.faint,
                "dots": line.dots,
                "x": _numbers(line.x),
                "y": _numbers(line.y),
            }
            for line in drawn
        ],
    }


def _numbers(values: Array) -> list[float]:
    return [float(f"{value:.6g}") for value in values]
