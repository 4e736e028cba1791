"""The runs that a page shows: each a directory whose files are read again only after a change."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from equipoise.console.place import printable
from equipoise.files import read_json
from equipoise.record.completions import COMPLETIONS, read_completions
from equipoise.record.described import algorithm_of, checked, clipped, directories, env_of, flat
from equipoise.record.live import LIVE, STALE_S, read_live, state_of
from equipoise.record.paths import RUN, VIDEOS
from equipoise.record.report import METRICS
from equipoise.record.series import SERIES
from equipoise.record.summary import SUMMARY
from equipoise.studies.settings import STUDY, TRIALS
from equipoise.watching.curves import Curves
from equipoise.watching.studies import ODD, WatchedStudy, stat_of

MOST_BYTES = 8 << 20  # bytes of a JSON file of a run that a page shows
SCAN_S = 2.0  # how often the folder is searched for new runs, and ended ones for a resume
FORGET_S = 120.0  # after which unused curves are dropped
MOST_CLIPS = 6  # videos of a run that are shown, the newest
MOST_PROBLEMS = 5  # damaged lines that are named
QUIET_S = 5.0  # without a report, after which a running run is called quiet
GOING = ("running", "quiet")  # what a run is that has not ended
OF_SUMMARY = (
    "verdict",
    "cause",
    "remedies",
    "alarms",
    "notes",
    "evaluation",
    "best_evaluation",
    "sites",
    *(one.name for one in SERIES if one.summary and one.live == one.name),
)


class Watched:
    """One run directory: its content, and when each of its files was last read."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.curves = Curves(path / METRICS)
        self.live: dict[str, Any] | None = None
        self.summary: dict[str, Any] | None = None
        self.completions: Mapping[str, object] | None = None
        self.clips: dict[str, float] = {}  # names of videos, each with its time, the newest first
        self.revision = 0  # of the folder, when something of this run last changed
        self.row: dict[str, Any] = {}
        self.settings: dict[str, str] = {}
        self._about: dict[str, Any] = {}
        # by file: its stat at the last reading
        self._read: dict[str, tuple[int, int, int]] = {}
        self._problems: dict[str, str] = {}
        self._asked = time.monotonic()

    @property
    def ended(self) -> bool:
        return self.row.get("status") not in GOING

    def asked(self) -> None:
        """Note that a viewer looks at the curves of this run."""
        self._asked = time.monotonic()

    def look(self) -> bool:
        """Read what changed; does the run look different now?"""
        if self._changed(RUN):
            self._read_program()
        if self._changed(SUMMARY):
            self.summary = self._file(SUMMARY)
        if self._changed(LIVE):
            try:
                self.live = read_live(self.path)
                self._problems.pop(LIVE, None)
            except FileNotFoundError:
                self.live = None
            except (OSError, ValueError) as error:
                self.live, self._problems[LIVE] = None, str(error)
        made = self._look_at_samples()
        new = self._changed(METRICS)
        if self.curves.behind or (
            new and (self.curves.rows or (self.live is None and self.summary is None))
        ):
            new = self._read_on() or new
        elif self.curves.rows and time.monotonic() - self._asked > FORGET_S and self.ended:
            self.curves = Curves(self.path / METRICS)
        try:
            row = self._row()
        except ODD as error:
            self._problems["the row"] = f"{self.path}: expected what a run writes, got {error}"
            row = {
                "id": self.name,
                "env": "?",
                "algorithm": "?",
                "status": "damaged",
                "problems": len(self._problems),
            }
        changed = row != self.row
        self.row = row
        return changed or new or made

    def _look_at_samples(self) -> bool:
        """Read completions and list clips if they changed; did they?"""
        texts, films = self._changed(COMPLETIONS), self._changed(VIDEOS)
        if texts:
            try:
                self.completions = _shown(read_completions(self.path))
                self._problems.pop(COMPLETIONS, None)
            except FileNotFoundError:
                self.completions = None
            except (OSError, ValueError) as error:
                self.completions, self._problems[COMPLETIONS] = None, str(error)
        if films:
            self.clips = _clips(self.path / VIDEOS)
        return texts or films

    def _changed(self, file: str) -> bool:
        """Is the file another one than when this was asked the last time?"""
        now = stat_of(self.path / file)
        before, self._read[file] = self._read.get(file, (0, 0, 0)), now
        return now != before

    def _file(self, file: str) -> dict[str, Any] | None:
        try:
            found = read_json(self.path / file, MOST_BYTES)
            if not isinstance(found, dict):
                raise ValueError(
                    f"{self.path / file}: expected a JSON object, got {type(found).__name__}"
                )
            self._problems.pop(file, None)
            return found
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            if (self.path / file).exists():
                self._problems[file] = str(error)
            return None

    def _read_program(self) -> None:
        about = self._file(RUN) or {}
        try:
            program = checked(about["program"], self.path / RUN)
            schedule = program["schedule"]
            self._about = {
                "env": clipped(env_of(program)),
                "algorithm": clipped(algorithm_of(program)),
                "seed": schedule.get("seed"),
                "steps": schedule.get("steps"),
                "on": about.get("on"),
                "started": about.get("started"),
                "host": (about.get("host") or {}).get("name"),
            }
            self.settings = {"on": str(about.get("on")), **flat(program)}
        except ODD as error:
            self._about = {"env": "?", "algorithm": "?"}
            self._problems.setdefault(
                RUN, f"{self.path / RUN}: expected the program of a run, got one without {error}"
            )

    def _row(self) -> dict[str, Any]:
        """The line of a list of runs."""
        told: Mapping[str, Any] = self.summary or self.live or self.curves.last
        evaluation, status = told.get("evaluation"), self._status()
        return {
            "id": self.name,
            **self._about,
            "status": status,
            "step": told.get("step") or told.get("env_steps") or told.get("updates") or 0,
            "steps_per_s": told.get("steps_per_s"),
            "return": told.get("return_mean"),
            "evaluation": evaluation.get("mean") if isinstance(evaluation, Mapping) else None,
            "cause": told.get("cause"),
            "wall_s": told.get("wall_s"),
            "alarms": len(told.get("alarms") or ()),
            "problems": len(self._problems) + len(self.curves.damaged),
            "bytes": self._read[METRICS][2],
            "changed": max(at[1] for at in self._read.values()) / 1e9
            if status not in GOING
            else None,
        }

    def _status(self) -> str:
        """Return the status of the summary. Before there is one: "running", "quiet" without a
        recent report, or "killed".

        "damaged" if run.json cannot be read, or if the run has ended and its summary cannot be
        read.
        """
        if RUN in self._problems:
            return "damaged"
        if self.summary is not None:
            return str(self.summary.get("status"))
        status = self._unended()
        return "damaged" if status == "killed" and SUMMARY in self._problems else status

    def _unended(self) -> str:
        now = time.time()
        if self.live is not None:
            state = state_of(self.live, now)
            return "quiet" if state == "running" and now - self.live["time"] > QUIET_S else state
        last = self._read[METRICS][1] / 1e9
        return "running" if now - last < STALE_S else "killed"  # nothing wrote a live.json yet

    def read_curves(self) -> Curves:
        """The curves up to this moment, or as far as one look reads."""
        self.asked()
        self._read_on()
        return self.curves

    def _read_on(self) -> bool:
        try:
            new = self.curves.read()
            self._problems.pop(METRICS, None)
        except (OSError, ValueError) as error:
            self._problems[METRICS] = str(error)
            return False
        return new

    def told(self) -> dict[str, Any]:
        """All that the page shows of the run but its curves."""
        told = dict(self.live or {})
        if self.summary is not None:
            told |= {key: self.summary[key] for key in OF_SUMMARY if key in self.summary} | {
                "phases": {},
                "evaluating": None,
            }
        problems = [*self._problems.values(), *self.curves.damaged[:MOST_PROBLEMS]]
        if (more := len(self.curves.damaged) - MOST_PROBLEMS) > 0:
            problems.append(
                f"{self.path / METRICS}: {more} more lines are damaged, and are left out"
            )
        return {
            **self.row,
            **told,
            "problems": [printable(one) for one in problems],
            "path": str(self.path),
            "completions": self.completions,
            "clips": [{"name": name, "changed": at} for name, at in self.clips.items()],
        }


def _shown(found: Mapping[str, object]) -> Mapping[str, object]:
    """Return completions without control characters, which a page would obey or hide."""
    samples = [
        one
        | {name: printable(str(one[name]), lines=True) for name in ("prompt", "completion")}
        | {"rewards": {printable(clipped(key)): x for key, x in one.get("rewards", {}).items()}}
        for one in cast(list[dict[str, dict[str, str]]], found["samples"])
    ]
    return {"step": found["step"], "samples": samples}


def _clips(place: Path) -> dict[str, float]:
    """The newest videos of a folder, each with its time; links are left out."""
    try:
        if place.is_symlink():
            return {}
        with os.scandir(place) as entries:
            found = [
                (one.stat(follow_symlinks=False).st_mtime, one.name)
                for one in entries
                if one.name.endswith(".mp4")
                and one.name.isprintable()
                and not one.name.startswith(".")
                and one.is_file(follow_symlinks=False)
            ]
    except OSError:
        return {}
    return {name: at for at, name in sorted(found, reverse=True)[:MOST_CLIPS]}


Kind = TypeVar("Kind", Watched, WatchedStudy)


class Folder:
    """All runs and studies below a folder. ``revision`` counts up with every change; ``poll``
    looks, and is cheap without one.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.runs: dict[str, Watched] = {}
        self.studies: dict[str, WatchedStudy] = {}
        self.revision = 0
        self.problem = ""  # what kept the last search from going everywhere
        self.gone: dict[str, int] = {}  # by name: the revision at which the run was gone
        self._scanned = -SCAN_S

    def poll(self, *, scan: bool = False) -> None:
        """Look at the files that changed. ``scan``: also search the folder, however recent the last
        search is.
        """
        now = time.monotonic()
        scan = scan or now - self._scanned >= SCAN_S
        if scan:
            self._scanned = now
            self._scan()
        for run in self.runs.values():
            if (scan or not run.ended or run.curves.behind) and run.look():
                self.revision += 1
                run.revision = self.revision
        for study in self.studies.values():
            if (scan or not study.ended) and study.look():
                self.revision += 1
                study.revision = self.revision

    def _scan(self) -> None:
        found, before = dict[str, Path](), self.problem
        try:
            for path in directories(self.place):
                name = self._name(path)
                while name in found:  # the bytes of one are the letters of another
                    name += "'"
                found[name] = path
            self.problem = ""
        # one that is removed while it is looked for; the next scan sees what is left
        except FileNotFoundError:
            if self.place.exists():
                return
        except OSError as error:  # a folder that may not be read: what is known stays
            self.problem = str(error)
            found |= {name: run.path for name, run in self.runs.items()}
        self.revision += self.problem != before
        self._forget(self.runs, found)
        for name, path in found.items():
            if name not in self.runs:
                self.gone.pop(name, None)
                self.runs[name] = Watched(path, name)
        self._scan_studies()

    def _scan_studies(self) -> None:
        """Find the study that the folder is, or the studies in it."""
        places = [self.place]
        with contextlib.suppress(OSError):  # removed, or it may not be read
            inside = [file.parent for file in self.place.glob(f"*/{STUDY}")]
            places += [one for one in inside if not one.is_symlink()]
        found = {self._name(path): path for path in places if (path / STUDY).is_file()}
        self._forget(self.studies, found)
        for name, path in found.items():
            if name not in self.studies:
                self.gone.pop(name, None)
                prefix = self._name(path / TRIALS) + "/"
                self.studies[name] = WatchedStudy(path, name, prefix)

    def _forget(self, known: dict[str, Kind], found: Mapping[str, Path]) -> None:
        for name in known.keys() - found.keys():
            self.revision += 1
            self.gone[name] = self.revision
            del known[name]

    def _name(self, path: Path) -> str:
        relative = path.relative_to(self.place).as_posix()
        return os.fsencode(path.absolute().name if relative == "." else relative).decode(
            errors="backslashreplace"
        )

    def news(self, since: int) -> dict[str, Any]:
        """Rows that changed after a revision, and names of runs and studies that are gone."""
        return {
            "rows": [run.row for run in self.runs.values() if run.revision > since],
            "studies": [one.row for one in self.studies.values() if one.revision > since],
            "gone": [name for name, at in self.gone.items() if at > since],
            "problem": self.problem,
        }
