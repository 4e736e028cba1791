"""``live.json``: the state of a run at this moment, renewed twice a second for programs that read
only its directory.

Nothing depends on it: a run that cannot write it goes on. A killed run leaves its last one behind,
so the file has its time of writing and its process, and ``state_of`` finds from them whether the
run still goes on.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from equipoise.balance.shares import STATES, Shares
from equipoise.deaths import machine
from equipoise.files import plain, read_json, write_atomic
from equipoise.record.report import Evaluation, Report
from equipoise.record.ring import Arrow, Rates, place_of, ring, way_back
from equipoise.record.series import SERIES, lag_name
from equipoise.schema import Anything, Each, Items, Maybe, Number, Schema, Text, check
from equipoise.types import Program

LIVE = "live.json"
FORMAT = 1
EVERY_S = 0.45  # at most so often: reports of the moment come twice a second
STALE_S = 10.0  # without a word for so long, a run on another machine counts as killed
MOST_WORKERS = 256  # that have a row each
MOST_SAID = 20  # notes and alarms

COUNT, REAL = Number(0, 1 << 62), Number(-1e300, 1e300)
TOLD: Schema = {"name": Text(1_000), "shares": Each(Number(0, 1)), "*": Anything()}
SCHEMA: Schema = {  # the fields that a reader relies on
    "format": Number(FORMAT, FORMAT, whole=True),
    "time": REAL,
    "pid": COUNT,
    "machine": Text(1_000),
    "born": Maybe(COUNT),
    "step": COUNT,
    "wall_s": REAL,
    "steps_per_s": Maybe(REAL),
    "return_mean": Maybe(REAL),
    "cause": Text(1_000),
    "verdict": Text(10_000),
    "ring": {"stations": Items(TOLD | {"shares": Maybe(Each(Number(0, 1)))}), "*": Anything()},
    "workers": Items(TOLD),
    "*": Anything(),
}


class Live:
    """Writes ``live.json`` of one run; ``write`` is given every report."""

    def __init__(self, directory: Path, program: Program) -> None:
        self._path, self._program = directory / LIVE, program
        self._rates, self._notes = Rates(), list[str]()
        self._evaluation: Evaluation | None = None  # the last one
        self._written = -EVERY_S
        self._owner = {"pid": os.getpid(), "machine": machine(), "born": born(os.getpid())}

    def write(self, report: Report) -> None:
        """Write it if the last one is old enough. A full disk costs a picture, not the run."""
        self._rates.add(report)
        self._evaluation = report.evaluation or self._evaluation
        self._notes = [*self._notes, *report.notes][-MOST_SAID:]
        if time.monotonic() - self._written < EVERY_S and not report.final:
            return
        self._written = time.monotonic()
        told = {
            "format": FORMAT,
            "time": time.time(),
            **self._owner,
            "evaluation": self._evaluation,
            "notes": self._notes,
        }
        with suppress(OSError):
            data = json.dumps(
                plain(told | picture(report, self._program, self._rates)), allow_nan=False
            )
            write_atomic(self._path, data.encode(), synced=False)


def picture(report: Report, program: Program, rates: Rates) -> dict[str, Any]:
    """A report's numbers of the moment, as JSON has them. Shares are of each worker's time,
    0..1.
    """
    stations, arrows = ring(report, program, rates)
    back = way_back(report, program, rates)
    lag: dict[str, str | float | None] = {
        "name": lag_name(program),
        "bound": program.placement.max_lag,
    }
    lag["now"] = (report.governor or {}).get("max_lag")
    numbers = {one.live: one.read(report) for one in SERIES if one.live}
    lag |= {
        key.removeprefix("lag."): numbers.pop(key)
        for key in list(numbers)
        if key.startswith("lag.")
    }
    at = {station.place: i for i, station in enumerate(stations)}
    placed = sorted(
        ((place_of(one.side, one.serves), name, one) for name, one in report.balance.items()),
        key=lambda it: it[0],
    )
    workers = [
        _worker(name, one, report, rates) | {"station": at.get(place)}
        for place, name, one in placed
    ]
    return {
        **numbers,
        "lag": lag,
        "step": report.step,
        "steps": program.schedule.steps,
        "final": report.final,
        "evaluating": plain(report.evaluating),
        "cause": report.cause,
        "verdict": report.verdict,
        "remedies": [one.to_json() for one in report.remedies],
        "ring": {
            "stations": [
                {
                    "name": one.name,
                    "noun": one.noun,
                    "shares": _shares(one.shares),
                    "full": one.full,
                }
                for one in stations
            ],
            "arrows": [_arrow(one) for one in arrows],
            "back": None if back is None else _arrow(back),
        },
        "workers": workers[:MOST_WORKERS],
        "more_workers": len(workers[MOST_WORKERS:]),
        "alarms": plain(report.alarms[-MOST_SAID:]),
        "phases": report.phases,
        "sites": plain(report.sites),
        "gpus": report.gpus,
        "governor": report.governor,
    }


def _arrow(one: Arrow) -> dict[str, object]:
    return {"level": one.level, "waits": one.waits, "said": one.said()}


def _worker(name: str, one: Shares, report: Report, rates: Rates) -> dict[str, object]:
    """One worker: its shares, the parts of its work, their times, and its process's usage."""
    usage = report.usage.get(name)
    parts = {part: one.part(part) for part in one.parts if one.parts[part] > 0}
    each = {part: one.parts[part] / one.counts[part] for part in parts if one.counts.get(part)}
    lines, last = report.printed.get(name, (0, ""))
    return {
        "name": name,
        "kind": one.kind,
        "side": one.side,
        "serves": one.serves,
        "shares": _shares(one) or {},
        "parts": {part: round(share, 4) for part, share in parts.items()},
        "each_s": each,
        "cores": None if usage is None else round(rates.cores(name), 3),
        "rss": None if usage is None else usage["rss"],
        "printed": lines,
        "last": last[:200],
    }


def _shares(one: Shares | None) -> dict[str, float] | None:
    if one is None or one.total <= 0:
        return None
    return {state: round(min(max(one.share(state), 0.0), 1.0), 4) for state in STATES}


# ------------------------------------------------------------------------------------------ reading


def read_live(directory: Path) -> dict[str, Any]:
    """The contents of ``live.json``; OSError if there is none, ValueError if it is damaged."""
    told: dict[str, Any] = check(read_json(directory / LIVE), SCHEMA, str(directory / LIVE))
    return told


def state_of(told: Mapping[str, Any], now: float | None = None) -> Literal["running", "killed"]:
    """Is the run that wrote this alive? By its process on this machine, elsewhere by the time."""
    if told["machine"] == machine():
        there = _exists(told["pid"]) if told["born"] is None else born(told["pid"]) == told["born"]
        return "running" if there else "killed"
    age = (time.time() if now is None else now) - told["time"]
    return "running" if age < STALE_S else "killed"


def born(pid: int) -> int | None:
    """When a process began, in ticks since the boot, which distinguishes a reused id.

    None if the system does not report it, or no such process works (a zombie does not).
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
