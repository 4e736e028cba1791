"""The run directory: all that a run leaves behind, and the only thing that other commands read.

run.json, spec.json (all that playing its policies needs), metrics.jsonl, live.json (the moment),
events.* (TensorBoard), checkpoints/step_N/, capsules/ (failures of envs), summary.json. JSON
files are replaced whole, and nan is written as null.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from equipoise import trust
from equipoise.errors import DirectoryLost
from equipoise.files import append_whole, is_at, json_bytes, plain, read_json, write_atomic
from equipoise.programs.program import from_json, to_json
from equipoise.programs.refusals import check as check_program
from equipoise.record import checkpoint, paths
from equipoise.record.checkpoint import Entry, Source, params_sha256
from equipoise.record.completions import write_completions
from equipoise.record.events import Events, scalars
from equipoise.record.live import Live
from equipoise.record.mirror import Mirror, Store
from equipoise.record.origin import commit, host, versions
from equipoise.record.paths import CAPSULES, RUN, VIDEOS
from equipoise.record.report import (
    METRICS,
    Evaluation,
    Report,
    kept_lines,
    left_out,
    read_reports,
    step_of,
)
from equipoise.record.schemas import RUN_SCHEMA, STATUSES, SUMMARY_KEYS
from equipoise.record.summary import SUMMARY, Summary, read_summary, write_summary
from equipoise.record.trackers.tracker import Trackers, read_all
from equipoise.schema import check
from equipoise.types import Program

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["STATUSES", "SUMMARY_KEYS", "RunDirectory", "params_sha256"]

CHECKPOINTS, LOGS = "checkpoints", "logs"
CLUSTER = "cluster"  # in run.json, of a run on a cluster: its settings
CLUSTER_PROOF = "cluster_signature"  # that this user's run wrote its address
BEST = "best"  # within checkpoints/: the weights of the best evaluation
KEPT = 3  # whole checkpoints


@dataclass(frozen=True, slots=True)
class _GoingOn:
    """A run that goes on, and has not written anything yet."""

    step: int
    reports: Sequence[Mapping[str, object]]  # of the file
    mirror: str | None  # a URL


class RunDirectory:
    """One run's directory, made by ``create`` (which writes) or found by ``open`` (which reads)."""

    def __init__(self, path: Path, program: Program | None, run: dict[str, Any]) -> None:
        self.path, self.run, self._program = path, run, program
        self._spec: Mapping[str, object] | None = None  # of a directory that is written
        self._events: Events | None = None
        self._purge_step: int | None = None  # TensorBoard hides what was drawn from there on
        self._trackers: Trackers | None = None
        self._metrics: FileIO | None = None
        self._live: Live | None = None
        self._lock: int | None = None
        self._going_on: _GoingOn | None = None  # until something is written
        self.mirror: Mirror | None = None  # at a URL

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str] | None,
        program: Program,
        *,
        on: str = "process",
        tensorboard: bool = True,
        report_to: str | Sequence[str] = (),
        extra: Mapping[str, object] | None = None,
        spec: Mapping[str, object] | None = None,
        mirror: str | None = None,
    ) -> Self:
        """A new directory with its run.json, and ``extra`` in it, such as notes on the env.

        ``spec``: the description that plays the policies, for every checkpoint
        (``record/playable.py``). ``tensorboard``: write event files; ``report_to``: trackers,
        ``KIND:NAME``; ``mirror``: a URL.
        """
        trackers = read_all(report_to)
        # first: a program that cannot be written leaves no directory behind
        data = to_json(program)
        directory = (
            paths.make_default(program) if path is None else paths.make(Path(path).expanduser())
        )
        run = {
            "program": data,
            "signature": trust.signature(data),
            "on": on,
            "argv": list(sys.argv),
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "seeds": {"program": program.schedule.seed},
            "versions": versions(),
            "commit": commit(Path.cwd()),
            "host": host(),
            "env_notes": [],
            "tensorboard": tensorboard,
            "trackers": trackers,
            **(extra or {}),
        }
        write_atomic(directory / RUN, json_bytes(run))
        made = cls(directory, program, plain(run))
        try:
            made._begin_writing()
            made._write_spec(spec)
            made._begin_trackers()
            made._begin_mirror(mirror)
        except BaseException:
            made.discard()
            raise
        return made

    def go_on(
        self,
        program: Program,
        *,
        on: str,
        step: int,
        changes: Mapping[str, object],
        extra: Mapping[str, object] | None = None,
        spec: Mapping[str, object] | None = None,
        source: Source | None = None,
        mirror: str | None = None,
    ) -> None:
        """Write into this directory again from ``step`` on. Later reports and checkpoints are cut
        off, and the summary is removed, once there is something to write (``confirm``).

        ``extra``, ``spec``, ``mirror``: as for ``create``. ``source``: the checkpoint.
        """
        self._begin_writing()
        try:
            reports = self.readable_metrics()
            self._begin_trackers(reported=max(map(step_of, reports), default=-1))
            if mirror is not None:
                Store(mirror)  # a wrong URL is refused now
            self._going_on = _GoingOn(step, reports, mirror)
            self.rewind(step, source)
            resumed = {
                "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                "step": step,
                "changes": plain(changes),
                "on": on,
            }
            data = to_json(program)
            self.run |= {
                "program": data,
                "signature": trust.signature(data),
                "on": on,
                "versions": versions(),
                "host": host(),
            }
            self.run |= plain(extra or {})
            self.run["resumed"] = [*self.run.get("resumed", []), resumed]
            self._program, self._spec = program, spec
        except BaseException:
            self.close()
            raise

    def _begin_mirror(self, url: str | None) -> None:
        """Copy to the URL from now on. Nothing of a beginning that fails is copied."""
        self.mirror = None if url is None else Mirror(self.path, url)

    def _write_spec(self, spec: Mapping[str, object] | None) -> None:
        self._spec = spec
        if spec is not None:
            write_atomic(self.path / checkpoint.SPEC, json_bytes(spec))

    @property
    def going_on(self) -> bool:
        """Is the resume still without a write?"""
        return self._going_on is not None

    def confirm(self) -> None:
        """Write what a resume changes, before its first write."""
        if self._going_on is None:
            return
        now = self._going_on
        self._cut(now.step, now.reports)
        checkpoint.cut(self.checkpoints, now.step)
        self._write_spec(self._spec)
        (self.path / SUMMARY).unlink(missing_ok=True)
        write_atomic(self.path / RUN, json_bytes(self.run))
        self._begin_mirror(now.mirror)
        self._going_on = None

    def rewind(self, step: int, source: Source | None = None) -> None:
        """Cut off reports and checkpoints after a step, and the last report of the run.

        ``source``: the checkpoint of that step.
        """
        self._close_events()
        self._purge_step = step + 1
        if self._going_on is not None:
            self._going_on = replace(self._going_on, step=step)
            return
        self._cut(step, self.readable_metrics())
        checkpoint.retain(self.checkpoints, KEPT, upto=step, known=source)

    def _cut(self, step: int, reports: Sequence[Mapping[str, object]]) -> None:
        """Leave the ``reports`` up to a step in the file."""
        write_atomic(self.path / METRICS, kept_lines(reports, step))
        assert self._metrics is not None
        self._metrics.close()
        self._metrics = (self.path / METRICS).open("ab", buffering=0)
        if self._trackers is not None:
            self._trackers.rewind()

    def _begin_writing(self) -> None:
        self._lock = paths.lock(self.path)
        (self.path / LOGS).mkdir(exist_ok=True)
        self._metrics = (self.path / METRICS).open("ab", buffering=0)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        trusted: Sequence[str] = (),
        only: Collection[str] = (),
    ) -> Self:
        """The run that is there; nothing is changed. ``only``: the kinds of names that are used.

        ``trusted``: modules and ``module:callable`` that the user vouches for (``trust.py``).
        Others' algorithms, envs and torsos are imported only if this user's run wrote the file.
        """
        found = cls.found(path)
        file = found.path / RUN
        found.run["program"] = trust.renamed(found.run["program"], trusted)
        names, signed = trust.of_program(found.run["program"])
        trust.check(
            [one for one in names if not only or one[0] in only],
            signed,
            found.run.get("signature"),
            trusted,
            file,
        )
        try:
            found._program = from_json(found.run["program"])
            check_program(found._program)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error
        check(found.run, RUN_SCHEMA, str(file))
        return found

    @classmethod
    def found(cls, path: str | os.PathLike[str]) -> Self:
        """The run's files, without its program: nothing that it names is imported."""
        directory = Path(path).expanduser()
        if not (directory / RUN).is_file():
            got = (
                "one without"
                if directory.is_dir()
                else "a file"
                if directory.exists()
                else "no directory"
            )
            raise FileNotFoundError(
                f"{directory}: expected a run directory with a {RUN}, got "
                f"{got}{paths.near_runs(directory)}"
            )
        run = read_json(directory / RUN)
        if not isinstance(run, dict) or "program" not in run:
            raise ValueError(f"{directory / RUN}: expected a JSON object with the key 'program'")
        return cls(directory, None, run)

    def cluster(self) -> dict[str, object]:
        """Return the settings of the cluster that the run was on."""
        given = self.run.get(CLUSTER, {})
        return dict(given) if isinstance(given, dict) else {}

    def check_cluster(self, settings: Mapping[str, object], trusted: Sequence[str]) -> None:
        """Raise ``Untrusted`` unless this user's run or ``trusted`` named the cluster's address."""
        names, proof = trust.of_cluster(settings), self.run.get(CLUSTER_PROOF)
        trust.check(names, settings, proof, trusted, self.path / RUN)

    @property
    def program(self) -> Program:
        if self._program is None:
            raise ValueError(f"{self.path}: expected a run that was opened with its program")
        return self._program

    # ----------------------------------------------------------------------------------- as it runs

    def write_report(self, report: Report) -> None:
        """Add one line to metrics.jsonl, flushed; the same for TensorBoard and trackers."""
        if self._metrics is None:
            raise ValueError(
                f"{self.path}: expected a directory made by create(), which writes; got one that "
                "was opened"
            )
        line = json.dumps(plain(report), allow_nan=False).encode() + b"\n"
        append_whole(self._metrics, line, self.path / METRICS)
        if self._trackers is not None:
            self._trackers.log(scalars(report), report.step)
        if self.run["tensorboard"]:
            self._events = self._events or Events(self.path, purge_step=self._purge_step)
            self._events.write(scalars(report), report.step)

    def lost(self) -> bool:
        """Return whether the directory was removed, renamed or replaced since it was opened."""
        return self._metrics is not None and not is_at(self._metrics, self.path / METRICS)

    def check_there(self) -> None:
        """Raise ``DirectoryLost`` if nothing that is saved would be found."""
        if self.lost():
            raise DirectoryLost(self.path)

    def _begin_trackers(self, reported: int = -1) -> None:
        if known := self.run.get("trackers"):
            self._trackers = Trackers(known, self.path, self.run["program"], reported=reported)

    def unreported(self) -> list[str]:
        """Return sentences on reports that the trackers did not get, each once."""
        return [] if self._trackers is None else self._trackers.problems()

    def _close_events(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None

    def write_live(self, report: Report) -> None:
        """Write live.json, the state of the run at this moment, for pages that show it."""
        self._live = self._live or Live(self.path, self.program)
        self._live.write(report)

    def sync_metrics(self) -> None:
        """A checkpoint promises the reports up to it."""
        assert self._metrics is not None
        os.fsync(self._metrics.fileno())

    def metrics(self) -> list[dict[str, Any]]:
        """The reports so far; ValueError for a damaged one."""
        return read_reports(self.path / METRICS)

    def readable_metrics(self) -> list[dict[str, Any]]:
        """The undamaged reports, which are all that a resume needs."""
        damaged: list[str] = []
        found = read_reports(self.path / METRICS, damaged=damaged)
        if damaged:
            warnings.warn(left_out(damaged), RuntimeWarning, stacklevel=3)
        return found

    def write_summary(self, summary: Mapping[str, object]) -> Summary:
        """Write summary.json -> what was written."""
        self.confirm()
        return write_summary(self.path, summary)

    def summary(self) -> Summary | None:
        """The contents of summary.json; None before the end, and with a warning if damaged."""
        return read_summary(self.path)

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        self._close_events()
        if self._trackers is not None:
            failed = (self.summary() or {}).get("status") == "failed"
            for text in self._trackers.close(failed=failed):
                warnings.warn(text.removeprefix("warning: "), RuntimeWarning, stacklevel=2)
            self._trackers = None
        if self.mirror is not None:
            self.mirror.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def discard(self) -> None:
        """Close and remove the directory of a run that did not begin; copy nothing."""
        if self.mirror is not None:
            self.mirror.close(last_s=0.0)
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---------------------------------------------------------------------------------- checkpoints

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    def save_checkpoint(
        self, step: int, params: Mapping[str, Tensor], meta: Mapping[str, object]
    ) -> Path:
        """checkpoints/step_N, of weights alone: complete or not there at all."""
        self.confirm()
        return checkpoint.save(self.checkpoints, step, params, meta, self._spec)

    def keep_completions(self, step: int, samples: Sequence[Mapping[str, object]]) -> None:
        """Write the completions of an evaluation over the last ones, and send them to trackers."""
        self.confirm()
        write_completions(self.path, step, samples)
        if self._trackers is not None:
            self._trackers.completions(samples, step)

    def save_best(
        self, step: int, params: Mapping[str, Tensor], meta: Mapping[str, object]
    ) -> Path:
        """checkpoints/best/step_N: the best weights, in place of those before."""
        self.confirm()
        saved = checkpoint.save(self.checkpoints / BEST, step, params, meta, self._spec)
        for other in saved.parent.glob("step_*"):
            if other != saved:
                shutil.rmtree(other, ignore_errors=True)
        return saved

    def best_checkpoint(self) -> Path | None:
        """The weights of the best evaluation so far; of a solved run, the weights that solved
        it.
        """
        return checkpoint.latest(self.checkpoints / BEST)

    def best_evaluation(self) -> Evaluation | None:
        """The best evaluation so far, of ``best_checkpoint``; None before the first."""
        found = self.best_checkpoint()
        evaluation = checkpoint.read_meta(found).get("evaluation") if found is not None else None
        return (
            None if evaluation is None or evaluation["mean"] is None else Evaluation(**evaluation)
        )

    def best_mean(self) -> float:
        """The mean return of that evaluation; -infinity if there was none."""
        best = self.best_evaluation()
        return -math.inf if best is None else best.mean

    def complete_checkpoint(
        self,
        step: int,
        files: dict[str, Entry],
        segments: dict[str, Entry],
        driver: object,
        meta: Mapping[str, object],
    ) -> Path:
        """Add the driver's state to the checkpoint aside, name it, remove old ones."""
        self.confirm()
        self.sync_metrics()
        place = checkpoint.aside(self.checkpoints, step)
        files = files | checkpoint.add(place, checkpoint.DRIVER, json_bytes(driver))
        files |= checkpoint.add(place, checkpoint.META, json_bytes(meta))
        files |= (
            {}
            if self._spec is None
            else checkpoint.add(place, checkpoint.SPEC, json_bytes(self._spec))
        )
        done = checkpoint.complete(self.checkpoints, step, files, segments)
        checkpoint.retain(self.checkpoints, KEPT)
        return done

    def latest_checkpoint(self, *, whole: bool = False) -> Path | None:
        """The newest undamaged one; ``whole``: one to go on from. Warns of damage."""
        skipped: list[str] = []
        found = checkpoint.latest(self.checkpoints, whole=whole, skipped=skipped)
        _warn(skipped, found)
        return found

    def whole_checkpoint(self, damaged: Mapping[Path, str] | None = None) -> Source:
        """The newest checkpoint to go on from; ValueError that names each damaged one.

        ``damaged``: checkpoints that were found damaged, and why.
        """
        skipped: list[str] = list((damaged or {}).values())
        found = checkpoint.choose(self.checkpoints, passed=damaged or {}, skipped=skipped)
        if found is None:
            why = "".join(f"; {damage}" for damage in skipped[:KEPT])
            raise ValueError(
                f"{self.path}: expected a whole checkpoint to go on from, got none{why}; start "
                "again with 'train', with --init-from if its weights can be read"
            )
        _warn(skipped, found.path)
        return found

    def newest_whole(self, damaged: Mapping[Path, str]) -> Source | None:
        """The same; None if there is none."""
        skipped: list[str] = []
        found = checkpoint.choose(self.checkpoints, passed=damaged, skipped=skipped)
        _warn(skipped, None if found is None else found.path)
        return found

    def result_checkpoint(self) -> Path | None:
        """The weights to play with: the weights that solved the run, else the newest."""
        summary, best = self.summary(), self.best_checkpoint()
        if summary is not None:
            solved = summary["status"] == "solved"
        else:
            solved = best is not None and checkpoint.read_meta(best).get("status") == "solved"
        return best if solved and best is not None else self.latest_checkpoint()

    @property
    def videos(self) -> Path:
        return self.path / VIDEOS

    @property
    def logs(self) -> str:
        """The directory into which the processes of workers print."""
        return str((self.path / LOGS).absolute())

    @property
    def capsules(self) -> Path:
        return self.path / CAPSULES


def _warn(skipped: Sequence[str], found: Path | None) -> None:
    for damage in skipped:
        warnings.warn(
            f"{damage}; {found or 'nothing'} is taken instead", RuntimeWarning, stacklevel=3
        )
