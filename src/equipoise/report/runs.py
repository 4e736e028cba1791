"""The runs of a report: read from their directories, and grouped where they differ only in the
seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import equipoise
from equipoise.balance.shares import STATES
from equipoise.console.curves import Axis, Curve, averaged, points
from equipoise.histograms import EDGES
from equipoise.record.described import clipped, directories, flat, labels, short_name
from equipoise.record.directory import RunDirectory
from equipoise.record.listing import RunRow, row
from equipoise.record.paths import RUN, near_runs
from equipoise.record.report import METRICS, left_out, read_reports
from equipoise.record.summary import SUMMARY as SUMMARY_FILE
from equipoise.schema import Anything, Each, Flag, Items, Maybe, Number, Schema, Text, check
from equipoise.types import Array

Entry = Mapping[str, Any]  # an object of the JSON that a run wrote
Balance = Mapping[str, Entry]  # seconds and counts by worker
MOST_RUNS = 64
SECONDS, COUNT, REAL = Number(0, 1e12), Number(0, (1 << 63) - 1), Number(-1e100, 1e100)
SHARES: Schema = {  # seconds, of which differences of two clocks may be a little below 0
    **dict.fromkeys(STATES, REAL),
    "asleep?": REAL,
    "kind": Text(200),
    "side": Text(200),
    "serves": Flag(),
    "parts?": Each(REAL),
    "*": Anything(),
}
EVALUATION: Schema = {
    "mean": Maybe(REAL),
    "std": Maybe(REAL),
    "episodes": COUNT,
    "env_steps?": COUNT,
    "*": Anything(),
}
SITES: Schema = Each(
    {"workers": Items(Text()), "received": COUNT, "sent": COUNT, "lost": COUNT, "*": Anything()}
)
ALARM: Schema = {
    **dict.fromkeys(("name", "owner", "evidence", "action"), Text()),
    "step": COUNT,
    "wall_s": SECONDS,
    "*": Anything(),
}
REMEDY: Schema = {
    **dict.fromkeys(("change", "costs"), Text()),
    **dict.fromkeys(("gain", "low", "high"), REAL),
    "*": Anything(),
}
USAGE: Schema = Each({"cpu_s": SECONDS, "rss": COUNT, "*": Anything()})
HISTOGRAM = Each(COUNT, 200)  # counts by the upper ends of the bins
BOTH: Schema = {  # what the page reads of a report and of a summary
    "wall_s": SECONDS,
    "env_steps": COUNT,
    "updates": COUNT,
    "steps_per_s": Maybe(REAL),
    "updates_per_s": Maybe(REAL),
    "return_mean": Maybe(REAL),
    "balance": Each(SHARES),
    "cause": Text(),
    "verdict": Text(),
    "notes": Items(Text()),
    "evaluation": Maybe(EVALUATION),
    "sites?": SITES,
    "alarms?": Items(ALARM),
    "remedies?": Items(REMEDY),
    "*": Anything(),
}
LINE: Schema = BOTH | {
    "final": Flag(),
    "lag_mean": Maybe(REAL),
    "lag_max": Maybe(REAL),
    "metrics": Each(Maybe(REAL)),
    "info": Each(Maybe(REAL)),
    "evaluation": Maybe(EVALUATION | {"env_steps": COUNT, "version": COUNT}),
    "lags?": Each(HISTOGRAM),
    "usage?": USAGE,
}
SUMMARY: Schema = BOTH | {
    "lag": {
        "mean": Maybe(REAL),
        "max": Maybe(REAL),
        **{f"{name}?": HISTOGRAM for name in EDGES},
        "*": Anything(),
    },
    "best_evaluation": Maybe(EVALUATION),
    "rows?": Each(Anything()),
}
RUN_JSON: Schema = {
    "program": Each(Anything()),
    "host?": Each(Anything()),
    "versions?": Each(Anything()),
    "*": Anything(),
}


@dataclass(frozen=True)
class RunRecord:
    """One run: its row in a listing, its run.json, its reports, and its summary at the end."""

    row: RunRow
    run: Entry
    lines: Sequence[Entry]
    summary: Entry | None
    left_out: tuple[str, ...]  # damaged lines, a sentence each

    @property
    def file(self) -> Path:
        return self.row.path / METRICS

    @property
    def name(self) -> str:
        return clipped(self.row.name)

    @property
    def running(self) -> bool:
        return self.row.status == "running"

    @property
    def last(self) -> Entry:
        return self.lines[-1]

    @property
    def cause(self) -> str:
        """What holds the run back, of the same as ``verdict``."""
        return str((self.summary or self.last)["cause"])

    @property
    def verdict(self) -> str:
        """The sentence of the whole run; of the last report while the run goes on."""
        return str((self.summary or self.last)["verdict"])

    @cached_property
    def settings(self) -> dict[str, str]:
        """Every setting but the seed, as ``--set`` names it."""
        found = flat(self.run["program"])
        found.pop("schedule.seed", None)
        return {"on": str(self.run.get("on")), **found}

    @cached_property
    def balance(self) -> Balance:
        """The seconds of each worker in each state, of the whole run so far."""
        if self.summary is not None:
            found: Balance = self.summary["balance"]
            return found
        if self.last["final"]:
            return self.last["balance"]  # type: ignore[no-any-return]
        return summed([line["balance"] for line in self.lines])

    @cached_property
    def ages(self) -> Mapping[str, Mapping[str, int]]:
        """The histograms of the age of experience over the whole run; empty if it has none."""
        if self.summary is not None:
            return {name: self.summary["lag"].get(name, {}) for name in EDGES}
        lines = [line for line in self.lines if line["final"]] or self.lines
        added: dict[str, Counter[str]] = {name: Counter() for name in EDGES}
        for line in lines:
            for name, counts in added.items():
                counts.update(line.get("lags", {}).get(name, {}))
        return added

    @property
    def lag_name(self) -> str:
        """The name of the lag: versions of the acting weights, or the age of a replay's rows."""
        return (
            "age of rows"
            if any(key.startswith("replay.") or ".replay." in key for key in self.settings)
            else "lag"
        )

    @property
    def version(self) -> str:
        return str((self.run.get("versions") or {}).get("equipoise"))

    @property
    def remedies(self) -> Sequence[Entry]:
        """The changes that are sure to help, the best first: their whole interval is a gain."""
        found: Sequence[Entry] = (self.summary or self.last).get("remedies") or ()
        return [one for one in found if one["low"] > 1.0]

    @property
    def alarms(self) -> Sequence[Entry] | None:
        """All alarms so far; None for a run that knows none."""
        found: Sequence[Entry] | None = (self.summary or self.last).get("alarms")
        return found

    @cached_property
    def notes(self) -> list[str]:
        """Notes for a person, each once."""
        said = [note for line in self.lines for note in line["notes"]]
        return list(dict.fromkeys([*said, *(self.summary["notes"] if self.summary else ())]))


@dataclass(frozen=True)
class Group:
    """Runs that differ only in the seed."""

    name: str
    style: int
    runs: tuple[RunRecord, ...]

    @property
    def first(self) -> RunRecord:
        return self.runs[0]

    @property
    def seeds(self) -> str:
        """How many there are, in words; empty for one."""
        n = len(self.runs)
        return (
            ""
            if n == 1
            else f"{n} {'seeds' if len({str(one.row.seed) for one in self.runs}) == n else 'runs'}"
        )

    def causes(self) -> Counter[str]:
        return Counter(one.cause for one in self.runs)

    @property
    def judged(self) -> RunRecord:
        """The first run whose verdict has the cause that most of them have."""
        cause = self.causes().most_common(1)[0][0]
        return next(one for one in self.runs if one.cause == cause)

    def balance(self) -> Balance:
        return summed([one.balance for one in self.runs])

    def values(self, key: str) -> list[float]:
        """The numbers of a column of the listing that runs have."""
        return [float(value) for one in self.runs if (value := getattr(one.row, key)) is not None]

    def each(self, y: str, axis: Axis) -> list[tuple[Path, Array, Array]]:
        """(file, x [N], y [N]) of each run that has the number."""
        found = []
        for one in self.runs:
            lines = [
                line for line in one.lines if not line["final"] or y == "evaluation"
            ] or one.lines
            try:
                found.append((one.file, *points(lines, axis, y, one.file)))
            except ValueError:  # this run has none
                continue
        return found

    def curve(self, found: Sequence[tuple[Path, object, object]]) -> Curve | None:
        """The mean of several runs and its interval; None where they do not overlap."""
        try:
            return averaged(self.name, found)
        except ValueError:
            return None


def axis_of(groups: Sequence[Group]) -> Axis:
    """Env steps; updates where no env is stepped."""
    return (
        "steps"
        if any(one.last["env_steps"] for group in groups for one in group.runs)
        else "updates"
    )


def summed(balances: Sequence[Balance]) -> dict[str, dict[str, Any]]:
    """Seconds by worker and by the parts of its work, added up."""
    found: dict[str, dict[str, Any]] = {}
    for balance in balances:
        for name, one in balance.items():
            into = found.setdefault(name, {**one, **dict.fromkeys(STATES, 0.0), "parts": {}})
            for state in STATES:
                into[state] += max(one[state], 0.0)
            for part, seconds in one.get("parts", {}).items():
                into["parts"][part] = into["parts"].get(part, 0.0) + max(seconds, 0.0)
    return found


# ------------------------------------------------------------------------------------------ reading


def read(places: Sequence[Path]) -> tuple[list[RunRecord], list[str]]:
    """(runs, warnings) of run directories and of folders with runs.

    ValueError or FileNotFoundError for a place without runs, a run without reports or of another
    version, and one named twice. A damaged run within a folder is left out, with a warning.
    """
    found: dict[Path, RunRecord] = {}
    warned: list[str] = []
    for place in places:
        if not place.is_dir():
            raise FileNotFoundError(
                f"{place}: expected a run or a folder with runs, got "
                f"{_kind(place)}{near_runs(place)}"
            )
        inside = list(directories(place))
        if not inside:
            raise FileNotFoundError(
                f"{place}: expected a run or a folder with runs, got a folder "
                f"without{near_runs(place)}"
            )
        for directory in inside:
            if (real := directory.resolve()) in found:
                raise ValueError(f"{place}: expected each run once, got {directory} twice")
            try:
                found[real] = one = read_run(directory)
            except ValueError as error:
                if directory == place:
                    raise
                warned.append(f"{error}; the run is left out")
                continue
            warned += _warnings(one)
    if not found:
        raise ValueError(
            f"{', '.join(map(str, places))}: expected a run with reports, got none; {warned[0]}"
        )
    if len(found) > MOST_RUNS:
        raise ValueError(
            f"expected at most {MOST_RUNS} runs in one report, got {len(found)}; name fewer of them"
        )
    return list(found.values()), warned


def _kind(place: Path) -> str:
    return "a file" if place.exists() else "none"


def _warnings(one: RunRecord) -> list[str]:
    found = []
    if one.left_out:
        found.append(left_out(one.left_out))
    if one.version != equipoise.__version__:
        found.append(
            f"{one.row.path}: a run of equipoise {one.version}, read by {equipoise.__version__}"
        )
    return found


def read_run(directory: Path) -> RunRecord:
    """One run; ValueError in one line where its files do not say what the page needs."""
    found = RunDirectory.found(directory)
    check(found.run, RUN_JSON, str(directory / RUN))
    damaged: list[str] = []
    lines = []
    for number, line in enumerate(read_reports(directory / METRICS, damaged=damaged), 1):
        try:
            lines.append(check(line, LINE, f"{directory / METRICS}, report {number}"))
        except ValueError as error:
            damaged.append(str(error))
    try:
        if (summary := found.summary()) is not None:
            check(summary, SUMMARY, str(directory / SUMMARY_FILE))
        told = RunRecord(row(directory, lines), found.run, lines, summary, tuple(damaged))
        _ = told.settings
    except ValueError as error:
        raise ValueError(_another_version(found, str(error))) from None
    except (KeyError, TypeError, AttributeError) as error:
        what = (
            f"{directory / RUN}: expected the program of a run, got one that lacks something "
            f"({error})"
        )
        raise ValueError(_another_version(found, what)) from None
    if not lines:
        raise ValueError(_another_version(found, damaged[0]) if damaged else _no_reports(told))
    return told


def _another_version(found: RunDirectory, problem: str) -> str:
    """The problem, with the versions if the run is of another one."""
    version = (found.run.get("versions") or {}).get("equipoise")
    if version == equipoise.__version__:
        return problem
    return (
        f"{found.path}: expected a run of equipoise {equipoise.__version__}, got one of "
        f"{version}, which differs: {problem}"
    )


def _no_reports(one: RunRecord) -> str:
    why = {
        "running": "that is still running: its first one comes after some updates",
        "killed": "that was killed before its first one",
    }
    got = why.get(one.row.status, "that ended before its first one")
    return f"{one.row.path}: expected a run with reports in {METRICS}, got one {got}"


# ----------------------------------------------------------------------------------------- grouping


def grouped(runs: Sequence[RunRecord]) -> list[Group]:
    """Runs of the same settings together, in order; each group has a name of its own."""
    by: dict[tuple[tuple[str, str], ...], list[RunRecord]] = {}
    for one in runs:
        by.setdefault(tuple(sorted(one.settings.items())), []).append(one)
    each = list(by.values())
    names = labels(
        [(short_name(of[0].row.env, of[0].row.algorithm), of[0].settings) for of in each]
    )
    return [Group(name, i, tuple(of)) for i, (name, of) in enumerate(zip(names, each, strict=True))]


def differences(groups: Sequence[Group]) -> dict[str, list[str]]:
    """The settings that groups differ in, with a value for each; "—" for one without it."""
    keys = dict.fromkeys(key for group in groups for key in group.first.settings)
    found = {key: [group.first.settings.get(key, "—") for group in groups] for key in keys}
    found |= {name: [_where(group, room, key) for group in groups] for name, room, key in WHERE}
    return {key: values for key, values in found.items() if len(set(values)) > 1}


WHERE = (
    ("machine", "host", "name"),
    ("cores", "host", "cores"),
    ("equipoise", "versions", "equipoise"),
    ("torch", "versions", "torch"),
)


def _where(group: Group, room: str, key: str) -> str:
    return ", ".join(sorted({str((one.run.get(room) or {}).get(key, "—")) for one in group.runs}))
