"""Curves of a run: ``metrics.jsonl`` read on from where the last reading ended, a column for each
number.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.balance.shares import STATES
from equipoise.files import open_plain, parse_json
from equipoise.record.report import SCHEMA, is_number
from equipoise.record.series import AXES, CURVES, ROOMS
from equipoise.report.figures import thinned
from equipoise.schema import check

PIECE = 4 << 20  # bytes of one read
AT_ONCE = 16 << 20  # bytes of one look: a file of a gigabyte keeps no other run waiting
LONGEST = 16 << 20  # bytes of a line; a longer one is damaged
MOST_POINTS = 400  # of a curve that is sent
MOST_BINS = 60  # of shares over time
MOST_NAMES = 500
SIDES = ("sampling", "learning")  # whose shares have curves, as "sampling/worked"


class Curves:
    """The numbers of one ``metrics.jsonl``.
    ``read`` takes in what was written since the last time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._forget()

    def _forget(self) -> None:
        self._at, self._file = 0, 0  # bytes that were taken in, and of which file
        self._size, self._stuck = 0, False
        self._lines = 0
        self.rows = 0
        self.damaged = list[str]()  # the faults of lines that were left out
        self.last: Mapping[str, Any] = {}
        self._columns = {axis: array("d") for axis in AXES}

    @property
    def names(self) -> list[str]:
        """The curves that there are, but for the shares."""
        known = [
            name
            for name in self._columns
            if name not in AXES and name.partition("/")[0] not in SIDES
        ]
        return sorted(known, key=lambda name: ("/" in name, name))

    def read(self) -> bool:
        """Read on, at most ``AT_ONCE`` bytes and a line; was there anything new?

        A file that became shorter or another one is read from its beginning: a resume rewrites it.
        ValueError for a pipe or a device.
        """
        try:
            with open_plain(self._path) as file:
                about = os.fstat(file.fileno())
                if about.st_ino != self._file or about.st_size < self._at:
                    self._forget()
                    self._file = about.st_ino
                self._size = about.st_size
                if about.st_size == self._at:
                    return False
                file.seek(self._at)
                before = self._at
                rest = b""
                while self._at - before < AT_ONCE and (piece := file.read(PIECE)):
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        self._line(line)
                        self._at += len(line) + 1
                    if len(rest) > LONGEST:  # no writer of ours does that
                        self._lines += 1
                        self._damage(
                            f"{self._path}, line {self._lines}: expected a line of at most "
                            f"{LONGEST:,} bytes, got "
                            f"{len(rest):,} without an end"
                        )
                        self._at += len(rest)
                        rest = b""
                self._stuck = self._at == before  # the end of a line is still to be written
                return self._at != before
        except FileNotFoundError:
            return False

    @property
    def behind(self) -> bool:
        """Is there more to be read than one look reads?"""
        return self._size > self._at and not self._stuck

    def _damage(self, problem: str) -> None:
        if len(self.damaged) < 1000:
            self.damaged.append(problem)

    def _line(self, data: bytes) -> None:
        self._lines += 1
        try:
            line = check(
                parse_json(data, self._path, self._lines),
                SCHEMA,
                f"{self._path}, line {self._lines}",
            )
            numbers = dict(_numbers(line))
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            self._damage(str(error))
            return
        self.last = line
        # of the whole run: no point of a curve
        if line["final"] and line.get("evaluation") is None:
            return
        for name, value in numbers.items():
            if name not in self._columns and len(self._columns) < MOST_NAMES:
                self._columns[name] = array("d", [math.nan]) * self.rows
            if name in self._columns:
                self._columns[name].append(value)
        self.rows += 1
        for column in self._columns.values():
            if len(column) < self.rows:
                column.append(math.nan)

    def curve(
        self, y: str, x: str = "steps", most: int = MOST_POINTS
    ) -> tuple[list[float], list[float]]:
        """The points that the run has of a number, x rising; empty if it has no such number."""
        if y not in self._columns or x not in AXES:
            return [], []
        at, values = np.array(self._columns[x]), np.array(self._columns[y])
        kept = np.isfinite(at) & np.isfinite(values)
        at, values = at[kept], values[kept]
        order = np.argsort(at, kind="stable")
        at, values = at[order], values[order]
        # shares are stacked: each at the same places, and their sum is 1
        if y.partition("/")[0] in SIDES:
            bins = np.array_split(np.arange(len(at)), min(len(at), MOST_BINS))
            at, values = (
                np.array([at[one[-1]] for one in bins]),
                np.array([values[one].mean() for one in bins]),
            )
        else:
            at, values = thinned(at, values, most)
        return [float(f"{v:.7g}") for v in at], [float(f"{v:.5g}") for v in values]


def _numbers(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a report by the names of curves."""
    for axis, one in AXES.items():
        yield axis, _number(line.get(one.name))
    if line["final"]:  # of the whole run, but for its evaluation
        yield (
            "evaluation",
            _number(line["evaluation"]["mean"]) if line.get("evaluation") else math.nan,
        )
        return
    for name, one in CURVES.items():
        yield name, _number(line.get(one.name))
    if line.get("evaluation"):
        yield "evaluation", _number(line["evaluation"]["mean"])
    for room, key in ROOMS.items():
        for name, value in (line.get(key) or {}).items():
            yield f"{room}/{name}", _number(value)
    for side in SIDES:
        workers = [one for one in (line.get("balance") or {}).values() if one.get("side") == side]
        seconds = {
            state: sum(max(_number(one.get(state)), 0.0) for one in workers) for state in STATES
        }
        if (total := sum(seconds.values())) > 0:
            yield from ((f"{side}/{state}", part / total) for state, part in seconds.items())


def _number(value: Any) -> float:
    return float(value) if is_number(value) else math.nan
