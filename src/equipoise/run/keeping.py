"""The driver's part of checkpoints: workers hand in theirs, the driver adds its own and gives the
whole its name.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from equipoise import phases
from equipoise.errors import Damaged
from equipoise.files import parse_json, plain
from equipoise.plans.blueprint import Blueprint
from equipoise.record import checkpoint, statefile
from equipoise.record.checkpoint import Entry, Source
from equipoise.record.directory import RunDirectory, params_sha256
from equipoise.record.mirror import END_S
from equipoise.record.report import METRICS, Report, read_reports, step_of
from equipoise.run.evaluation_schedule import EvaluationSchedule
from equipoise.run.reporter import Reporter
from equipoise.run.saving import SaveRequest
from equipoise.runtime.messages import Cut
from equipoise.schema import check
from equipoise.sources.source import source_of

CHECKPOINT_S = 120.0  # between two checkpoints, if the program sets no time


def told_of(line: Mapping[str, Any]) -> bool:
    """Does a recorded report, which a resume keeps, have an evaluation?"""
    return not line["final"] and line["evaluation"] is not None


class Checkpointing:
    """Saves a run, whole or its weights alone. A full disk costs a checkpoint, not the run."""

    def __init__(self, blue: Blueprint, files: RunDirectory) -> None:
        self._blue, self._files = blue, files
        source_of(blue.program).keep(files.path)
        self.version = -1  # of the newest whole checkpoint
        self.written = deque[Path]()  # checkpoints that no callback has heard of yet
        self.asked = SaveRequest()
        self.summary: dict[str, Any] | None = None
        # a checkpoint whose rest is written: files, the driver's state
        self._began: tuple[dict[str, Entry], Any] | None = None
        self._at = time.monotonic()

    @property
    def writing(self) -> bool:
        """Is a part of a checkpoint there, whose rest is still to come?"""
        return self._began is not None

    def begin(self) -> None:
        """The run begins: the time until its first checkpoint runs from now on."""
        self._at = time.monotonic()

    def due(self) -> bool:
        """Are the workers to be asked for a checkpoint: did the user want one, or has the last one
        grown old?
        """
        if self.asked.due(busy=self.writing):
            return True
        old = (
            self._blue.program.schedule.checkpoint_every is None
            and time.monotonic() - self._at >= CHECKPOINT_S
        )
        if old:
            self._at = time.monotonic()
        return old

    def lost(self) -> None:
        """The workers that were asked are gone, with the parts that they handed in."""
        self._began = None
        self.asked.lost()

    def keep(self, cut: Cut, reporter: Reporter, evaluations: EvaluationSchedule) -> bool:
        """Add the driver's part to a cut, and name the checkpoint once all is written -> False if
        it could not be.

        Whether the run goes on is for the caller: after the last one it does not, so that what is
        summed up is what was saved.
        """
        if cut.late and self._began is None:  # given up before
            return False
        self._at = time.monotonic()
        # As it is now, while the run holds still: plain() copies.
        began, error = self._began, cut.error
        if began is None:
            waiting = {} if error is not None else self._exams(cut.step, evaluations, reporter)
            began = (
                waiting,
                plain({"reporter": reporter.state(), "evaluations": evaluations.state()}),
            )
        files, driver = began
        self._began = (files | cut.files, driver) if cut.more else None
        if cut.more:
            return True
        if error is None:
            try:
                path = self._files.complete_checkpoint(
                    cut.step, files | cut.files, cut.segments, driver, self.meta(cut.version)
                )
                self.version = cut.version
                self.written.append(path)
                self.asked.done(path)
                if self._files.mirror is not None:
                    self._files.mirror.wake(reporter.note)
            except OSError as problem:
                error = str(problem)
        if error is not None:
            self.asked.done(error)
            checkpoint.abandon(self._files.checkpoints, cut.step)
            reporter.note(f"warning: no checkpoint at step {cut.step:,}: {error}")
        return error is None

    def _exams(
        self, step: int, evaluations: EvaluationSchedule, reporter: Reporter
    ) -> dict[str, Entry]:
        """Write the weights still to be evaluated into the checkpoint that is aside."""
        place, waiting = checkpoint.aside(self._files.checkpoints, step), evaluations.waiting()
        try:
            if not waiting:
                return {}
            return checkpoint.add(place, checkpoint.EXAMS, checkpoint.weights_bytes(waiting))
        except OSError as error:
            reporter.note(
                "warning: the weights that wait to be evaluated are not in the checkpoint of step "
                f"{step:,}: {error}"
            )
            return {}

    def load(self, source: Source, reporter: Reporter, evaluations: EvaluationSchedule) -> None:
        """Go on from the driver's part of a checkpoint; ValueError that names its file where it
        does not fit.
        """
        self.version, step = source.version, step_of(source.meta)
        file, exams = source.path / checkpoint.DRIVER, source.path / checkpoint.EXAMS
        driver = parse_json(source.read(checkpoint.DRIVER), file)
        waiting: Mapping[str, Tensor] = {}
        if checkpoint.EXAMS in source.files:
            waiting = statefile.parse_weights(source.read(checkpoint.EXAMS), exams)
        source.kept.clear()
        schema = {
            "reporter": reporter.schema(self.version),
            "evaluations": evaluations.schema(self.version),
        }
        check(driver, schema, str(file))
        reporter.load(driver["reporter"], self._files.best_evaluation())
        lines = read_reports(self._files.path / METRICS, damaged=[])
        told = {
            line["evaluation"]["version"]
            for line in lines
            if step_of(line) <= step and told_of(line)
        }
        try:
            evaluations.load(driver["evaluations"], waiting, told)
        except ValueError as error:
            raise Damaged(f"{exams}: {error}") from error

    def recorded(self, report: Report, reporter: Reporter) -> Report:
        """Write a report that is to be recorded."""
        if report.recorded:
            try:
                self._files.confirm()
                self._files.write_report(report)
                for text in self._files.unreported():
                    reporter.note(text)
            except OSError as error:
                reporter.note(f"warning: a report was not written: {error}")
        return report

    def meta(self, version: int) -> dict[str, object]:
        """A checkpoint's description of itself."""
        schedule = self._blue.program.schedule
        return {
            "version": version,
            "env_steps": self._blue.pace.env_steps(version),
            "schedule_steps": schedule.schedule_steps or schedule.steps,
        }

    def weights(
        self,
        save: Callable[..., Path],
        reporter: Reporter,
        evaluations: EvaluationSchedule,
        meta: dict[str, object],
    ) -> None:
        """Save the weights that were evaluated last, or that the run ended with."""
        try:
            self.written.append(save(step_of(meta), evaluations.params(), meta))
        except OSError as error:
            reporter.note(f"warning: the weights of step {step_of(meta):,} are not saved: {error}")

    def evaluated(self, reporter: Reporter, evaluations: EvaluationSchedule, until: float) -> None:
        """Go on with an evaluation. If it ends with the best mean so far, keep its weights."""
        evaluation = evaluations.advance(until)
        reporter.evaluated(evaluation, evaluations.solved)
        if evaluation is not None and evaluations.answers:
            answers = [asdict(one) for one in evaluations.answers]
            try:
                self._files.keep_completions(evaluation.step, answers)
            except OSError as error:
                reporter.note(f"warning: the completions were not written: {error}")
        if evaluation is not None and evaluation.mean > self._files.best_mean():
            meta = self.meta(evaluation.version) | {"status": "best"}
            self.weights(
                self._files.save_best, reporter, evaluations, meta | {"evaluation": evaluation}
            )

    def ended(
        self, status: str, reporter: Reporter, evaluations: EvaluationSchedule, *, whole: bool
    ) -> None:
        """Save what is still to be saved of the weights, and the summary, also of a run that ended
        early.

        ``whole``: the last weights are in a whole checkpoint already.
        """
        if self._files.lost():
            self.summary = plain(reporter.summary(status, evaluations.version))
            return
        if status == "solved" or not whole:
            phases.ending("saving the weights")
            meta = self.meta(evaluations.version) | {
                "status": status,
                "evaluation": evaluations.last,
            }
            save = self._files.save_best if status == "solved" else self._files.save_checkpoint
            self.weights(save, reporter, evaluations, meta)
        self.sum_up(status, reporter, evaluations)
        self._mirrored(status, reporter, evaluations)
        phases.ending("")

    def _mirrored(self, status: str, reporter: Reporter, evaluations: EvaluationSchedule) -> None:
        """Wait until the URL has all that the directory has, and sum up what failed."""
        mirror = self._files.mirror
        if mirror is None:
            return
        phases.ending(f"copying the run to {mirror.url}, in {END_S:.0f} s at most")
        mirror.finish(END_S, reporter.note)
        if mirror.failures:
            reporter.note(
                f"warning: {mirror.failures} times the run could not be copied to {mirror.url}"
            )
            self.sum_up(status, reporter, evaluations)

    def sum_up(self, status: str, reporter: Reporter, evaluations: EvaluationSchedule) -> None:
        """Write the summary, which ``summary`` keeps."""
        exams = {"asked": evaluations.asked, "made": evaluations.made}
        summary = reporter.summary(status, evaluations.version) | {"evaluations": exams}
        summary |= {"params_sha256": params_sha256(evaluations.params())}
        try:
            self.summary = self._files.write_summary(summary)
        except OSError as error:
            reporter.note(f"warning: the summary was not written: {error}")
            self.summary = plain(summary)
