"""A whole run: start the workers, report, evaluate, stop, save, sum up."""

from __future__ import annotations

import inspect
import time
import warnings
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path

from equipoise import phases
from equipoise.errors import CannotStart, Damaged, WorkerFailed, forget_locals
from equipoise.nets.precision import emulated
from equipoise.nets.threads import crowded
from equipoise.plans.beginning import Beginning
from equipoise.plans.plan import plan_run
from equipoise.programs.limits import check_processes
from equipoise.record.report import Report, step_of
from equipoise.record.summary import Summary
from equipoise.run import beginnings
from equipoise.run.attempt import Attempt
from equipoise.run.beginnings import Services
from equipoise.run.callbacks import Listeners
from equipoise.run.evaluation_schedule import EvaluationSchedule
from equipoise.run.governing import Governing
from equipoise.run.keeping import Checkpointing
from equipoise.run.outside import Worlds
from equipoise.run.reporter import Reporter
from equipoise.run.saving import RunState, doubts, promise
from equipoise.run.starting import Runtime, start
from equipoise.runtime.messages import Cut, Message, Note, Offered, Record
from equipoise.runtime.process import forkserver
from equipoise.runtime.session import SESSION, Interrupt
from equipoise.sources.source import source_of
from equipoise.tuning import forward
from equipoise.tuning.choices import usual
from equipoise.types import Program

SLICE_S = 0.05  # the driver's attention span
LIVE_S = 0.5  # a report at least this often, recorded or not
# the longest time that a stopping run takes to hold still; clusters kill it after 30
LAST_CUT_S = 20.0


class Run:
    """An iterator over the reports of a run; it begins with the first ``next`` and ends when the
    iterator does.

    Ending early (``close``, the end of a ``with`` block, Ctrl-C, SIGTERM, the end of the program, a
    callback that returns False) stops the workers, saves the run and writes the summary. A run that
    is dropped before its first ``next`` warns that it trained nothing.
    """

    _begun = True  # of a run whose ``__init__`` raised, which has nothing to warn of

    def __init__(self, program: Program, beginning: Beginning, services: Services) -> None:
        """``program`` is checked already (``programs/refusals.py``); settings that it leaves
        ``auto`` have their usual values.
        """
        self._listeners = Listeners(services.callbacks)
        program, said = source_of(program := usual(program)).evaluable()
        on, nodes, place = services.on, services.nodes, program.placement
        # processes of their own for the workers
        self._processes, self._nodes = on != "serial", nodes
        self._warnings = [
            *services.notes,
            *said,
            *emulated(place.precision, place.acting_precision, place.device),
        ]
        if self._processes:
            if nodes is None:  # else it is known once the workers are dealt to machines
                check_processes(program)
            forkserver.prepare(central=place.inference == "central")
            self._warnings += crowded(place.learners, place.threads)
        self.program, self.on, self._kinds = program, on, tuple(services.kinds)
        self._worlds = Worlds(program, self)
        self._source = beginning.source
        self._damaged: dict[Path, str] = {}  # checkpoints that a worker could not load, and why
        blue = plan_run(program, beginning)
        self._warnings += source_of(program).notes(blue.dataset, blue.spec)
        opened = beginnings.opened(blue, beginning, services)
        self._files, self.changes = opened.files, opened.changes
        self._warnings += opened.warnings
        self._blue = replace(
            blue,
            resume=None,
            directory=str(self._files.checkpoints.absolute()),
            capsules=str(self._files.capsules.absolute()),
            forward=forward.forward_of(blue, opened.forward),
            logs=self._files.logs,
        )
        self._inbox: deque[Message] = deque()
        self._told = ""  # the traceback of the last note
        self._governing = Governing(self._blue, self._kinds, self._files.path)
        self._keeping = Checkpointing(self._blue, self._files)
        self._known = RunState(steps=program.schedule.steps, directory=self._files.path)
        # made by the first ``next``: a run that nothing else holds is dropped at once
        self._reports: Generator[Report] | None = None
        self._begun = False  # or closed
        SESSION.close_at_exit(self)

    def __del__(self) -> None:
        if not self._begun:
            self.close_unused()

    def __repr__(self) -> str:
        state, where = self.state(), f"{self.program.name} in {self.directory}"
        return f"<Run of {where}: {state.status}, step {state.step:,} of {state.steps:,}>"

    @property
    def summary(self) -> Summary | None:
        """The contents of ``summary.json``; None before the run has ended."""
        return self._keeping.summary

    @property
    def directory(self) -> Path:
        return self._files.path

    def __iter__(self) -> Iterator[Report]:
        return self

    def __next__(self) -> Report:
        if self._listeners.busy:
            raise RuntimeError("expected no request for a report from within a callback, got one")
        if self._listeners.stopped:
            self.close()
        kept = self._keeping.asked.reports
        report = kept.popleft() if kept else self._next()
        try:
            if report is None:
                self._listeners.checkpointed(self._keeping.written)
                raise StopIteration
            self._listeners.hear(report, self._keeping.written)
        except StopIteration:
            raise
        except BaseException:
            self.close()
            raise
        return report

    def _next(self) -> Report | None:
        if self._reports is None and not self._begun:
            self._begun, self._reports = True, self._run()
        if self._reports is None:
            return None
        if (report := next(self._reports, None)) is not None:
            self._known = self._known.after(report)
            self._files.write_live(report)
        return report

    def save(self) -> Path:
        """Write a checkpoint of the whole run now -> its directory, which ``resume`` and
        ``init_from`` can begin from.

        The run goes on until the next version, if it holds still; a run that has not begun begins.
        Reports of the meantime come with the next reports. OSError if the checkpoint could not be
        written.
        """
        if (
            self._reports is not None
            and inspect.getgeneratorstate(self._reports) == inspect.GEN_RUNNING
        ):
            raise RuntimeError(
                "save: expected a call between two reports, got one from within, or from another "
                "thread"
            )
        self._keeping.asked.begin()
        while self._keeping.asked.result is None and (report := self._next()) is not None:
            if report.recorded or report.notes or report.evaluation is not None:
                self._keeping.asked.reports.append(report)
        if isinstance(self._keeping.asked.result, str):
            raise OSError(
                f"{self.directory}: expected to write a checkpoint, got: "
                f"{self._keeping.asked.result}"
            )
        return self._keeping.asked.result or self._files.whole_checkpoint(self._damaged).path

    def state(self) -> RunState:
        """Where the run is, as of its last report."""
        saved = self._blue.pace.steps(self._keeping.version) if self._keeping.version >= 0 else None
        return replace(
            self._known, status=(self.summary or {}).get("status", self._known.status), saved=saved
        )

    def close_unused(self) -> None:
        """Close at the end of the program, with a warning if nothing was trained."""
        try:
            if not self._begun:
                warnings.warn(
                    f"the run in {self.directory} was never iterated, so it has trained nothing; "
                    "train with eq.train(...), or iterate: for report in run: ...",
                    RuntimeWarning,
                    stacklevel=2,
                )
        finally:  # a warning may be an error
            self.close()

    def close(self) -> None:
        """Stop the workers, save the run and write the summary; again does nothing."""
        self._begun = True
        if self._reports is not None:
            self._reports.close()
        self._keeping.asked.reports.clear()
        self._files.close()
        self._leave()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> Generator[Report]:
        try:
            with Interrupt() as interrupt:
                yield from self._train(interrupt)
        except Exception as error:
            if self._processes:
                forget_locals(error)
            raise
        finally:
            self._files.close()
            self._leave()

    def _leave(self) -> None:
        """Disconnect from the cluster, and from worlds outside, if there are any."""
        self._worlds.close()
        if self._nodes is not None:
            self._nodes.disconnect()

    def _begin(self, began: float) -> tuple[Runtime, Reporter, EvaluationSchedule]:
        """Start the workers, from the checkpoint ``_source`` if there is one."""
        blue, source = replace(self._blue, resume=self._source), self._source
        try:
            runtime = start(blue, self.on, self._kinds, self._nodes)
        except Damaged as error:  # found by a worker that is built here
            self._fall_back(str(error))
            return self._begin(began)
        reporter = Reporter(blue, runtime.stats, began, self.on)
        evaluations = EvaluationSchedule(blue, runtime.weights)
        if source is not None:
            self._keeping.load(source, reporter, evaluations)
            reporter.note(
                f"resumed at step {blue.pace.steps(self._keeping.version):,}: "
                f"{promise(blue.spec.env)}"
            )
        for said in doubts(blue, self._keeping.version):
            reporter.note(said)
        return runtime, reporter, evaluations

    def _again(self, attempt: Attempt, error: WorkerFailed) -> Attempt:
        """After a failure that no replacement of one worker mends: the whole attempt, from the
        newest checkpoint.
        """
        if error.death.cause == Damaged.__name__ and self._source is not None:
            self._end(attempt)
            self._fall_back(error.traceback_text.rstrip().rpartition("\n")[2].partition(": ")[2])
            return Attempt(*self._begin(time.monotonic()))
        hopeless = attempt.failed(error, self.program.placement.give_up_s)
        if not error.vital or error.final:
            raise error
        if hopeless:
            raise WorkerFailed(
                error.worker,
                f"{error.reason}, {hopeless}",
                error.traceback_text,
                death=error.death,
                cause=error.cause,
            ) from error
        self._end(attempt)
        self._source = self._files.newest_whole(self._damaged)
        runtime, reporter, evaluations = self._begin(
            time.monotonic() if self._source else attempt.reporter.began
        )
        self._files.rewind(0 if self._source is None else step_of(self._source.meta), self._source)
        # once: a mistake in an algorithm fails in each attempt
        text = error.traceback_text.rstrip()
        said, self._told = "" if text in ("", self._told) else f"\n{text}", text
        reporter.note(
            f"warning: {error.worker} {error.reason}; the run goes on from step "
            f"{reporter.step:,}{said}"
        )
        return Attempt(
            runtime, reporter, evaluations, furthest=attempt.furthest, streak=attempt.streak
        )

    def _end(self, attempt: Attempt) -> None:
        """Stop an attempt that another replaces, and forget its messages."""
        attempt.runtime.stop()
        attempt.evaluations.close()
        self._inbox.clear()
        self._keeping.lost()

    def _fall_back(self, why: str) -> None:
        """Go on from the checkpoint before the unreadable one; ``WorkerFailed`` if there is
        none.
        """
        assert self._source is not None
        self._damaged[self._source.path] = why
        try:
            self._source = self._files.whole_checkpoint(self._damaged)
        except ValueError as error:
            raise WorkerFailed("checkpoint", str(error), final=True) from None
        self._files.rewind(step_of(self._source.meta), self._source)

    def _train(self, interrupt: Interrupt) -> Generator[Report]:
        status, nothing, interrupt.eager = "failed", False, True
        try:
            runtime, reporter, evaluations = self._begin(time.monotonic())
        except (OSError, MemoryError) as error:
            if (told := CannotStart.of(error)) is None:
                raise
            if self._source is None:
                self._files.discard()
            raise told from error
        except KeyboardInterrupt:
            if self._source is None:  # nothing has begun
                self._files.discard()
            raise
        attempt = Attempt(runtime, reporter, evaluations)
        for warning in self._warnings:
            reporter.note(warning)
        self._keeping.begin()
        try:
            while (
                not attempt.runtime.done
                and not attempt.evaluations.solved
                and not attempt.reporter.hopeless
            ):
                interrupt.check()
                self._worlds.tell(attempt.reporter.note)
                if self._keeping.due():
                    attempt.runtime.hold()
                try:
                    self._inbox.extend(
                        attempt.runtime.poll(
                            0.0 if attempt.evaluations.running and self._processes else SLICE_S
                        )
                    )
                except WorkerFailed as error:
                    interrupt.check()
                    yield from self._noted(attempt)
                    attempt = self._again(attempt, error)
                    yield from self._noted(attempt)  # the next failure may come before a report
                self._governing.look(
                    attempt, disturbed=attempt.evaluations.running or self._keeping.writing
                )
                interrupt.eager = interrupt.eager and attempt.runtime.stats().taken == 0
                while self._inbox:
                    if (report := self._handle(self._inbox.popleft(), attempt)) is not None:
                        yield report
                attempt.take()
                if attempt.evaluations.waits:
                    attempt.evaluations.consider(
                        attempt.reporter.step, attempt.runtime.stats().recent_return
                    )
                yield from self._examine(attempt, interrupt, beside=self._processes)
                yield from self._by_time(attempt)
            if attempt.evaluations.solved:
                status = "solved"
            else:
                status = "completed" if attempt.runtime.done else "alarmed"
        except GeneratorExit:
            status = "interrupted"
            raise
        except KeyboardInterrupt:
            status, nothing = "interrupted", self._came_to_nothing(attempt)
            raise
        except Exception as error:
            nothing = self._came_to_nothing(attempt)
            attempt.reporter.failed(error)
            yield from self._noted(attempt)
            raise
        finally:
            if nothing:
                attempt.evaluations.close()
                attempt.runtime.stop()
                self._files.close()
            else:
                self._finish(attempt, status)
        if status == "completed" and self.program.evaluation.episodes:
            yield from self._last_evaluation(attempt, interrupt)
        last = self._keeping.recorded(attempt.reporter.report(final=True), attempt.reporter)
        self._files.close()
        yield last

    def _came_to_nothing(self, attempt: Attempt) -> bool:
        """Has a run that goes on neither learned nor written anything? Then nothing of it
        changes.
        """
        return self._files.going_on and attempt.runtime.stats().version == self._keeping.version

    def _finish(self, attempt: Attempt, status: str) -> None:
        """Save what is still to be saved, and sum the run up."""
        whole = status in ("interrupted", "solved", "alarmed") and self._last_cut(attempt)
        # the records end here: use what exists
        if status in ("alarmed", "interrupted", "failed"):
            self._keeping.recorded(attempt.reporter.report(timed=True), attempt.reporter)
        attempt.reporter.settle()
        attempt.evaluations.close()
        if status != "solved":
            attempt.evaluations.snapshot()
        attempt.runtime.stop()
        if status != "completed" and (said := attempt.evaluations.missing()):
            attempt.reporter.note(said)
        whole = whole or self._keeping.version == attempt.evaluations.version
        self._keeping.ended(status, attempt.reporter, attempt.evaluations, whole=whole)

    def _handle(self, message: Message, attempt: Attempt) -> Report | None:
        """A record becomes a report, a cut a checkpoint, a note is reported."""
        if isinstance(message, Cut):
            self._files.check_there()
            self._keeping.keep(message, attempt.reporter, attempt.evaluations)
            attempt.runtime.release(message)
        elif isinstance(message, Offered):
            attempt.evaluations.offer(message.version)
        elif isinstance(message, Note):
            attempt.reporter.note(message.text)
        else:
            # other messages of workers are for the runtime
            assert isinstance(message, Record), message
            if not message.partial:
                return self._keeping.recorded(attempt.reporter.report(message), attempt.reporter)
            attempt.reporter.heard(message)
        return None

    def _noted(self, attempt: Attempt) -> Iterator[Report]:
        """A report at once if there are notes that no report has had: an attempt that fails takes
        its own along.
        """
        for message in self._inbox:
            if isinstance(message, Note):
                attempt.reporter.note(message.text)
        if attempt.reporter.noted:
            yield attempt.reporter.report()

    def _last_cut(self, attempt: Attempt) -> bool:
        """Save the whole run before it ends early; False if there is nothing to save yet, or it
        took too long or failed.
        """
        if attempt.runtime.stats().version == 0:
            return False
        phases.ending(
            f"saving the whole run once its workers hold still, in {LAST_CUT_S:.0f} s at most"
        )
        until, holds = time.monotonic() + LAST_CUT_S, False
        try:
            attempt.runtime.hold(last=True)
            # A write in progress has no limit: a second Ctrl-C ends it.
            while (self._keeping.writing or time.monotonic() < until) and not attempt.runtime.done:
                while self._inbox:
                    message = self._inbox.popleft()
                    if isinstance(message, Cut) and (holds or not message.late):
                        kept = self._keeping.keep(message, attempt.reporter, attempt.evaluations)
                        holds = True
                        if not message.more:
                            return kept
                    else:
                        self._handle(message, attempt)
                attempt.take(ends=True)
                self._inbox.extend(attempt.runtime.poll(SLICE_S))
                if attempt.reporter.due:  # the sender of the signal may not wait
                    self._keeping.recorded(attempt.reporter.report(timed=True), attempt.reporter)
        # whatever it is, the weights and the summary are still to be written
        except Exception as error:
            attempt.reporter.note(f"warning: no last checkpoint: {type(error).__name__}: {error}")
            return False
        if not attempt.runtime.done:
            attempt.reporter.note(
                f"warning: no last checkpoint of the run within {LAST_CUT_S:.0f} s; its weights "
                "are saved"
            )
        return False

    def _examine(
        self, attempt: Attempt, interrupt: Interrupt, *, beside: bool
    ) -> Generator[Report]:
        """Go on with an evaluation: ``beside`` training for a moment, or to its end, with reports
        of how far it is.
        """
        while attempt.evaluations.running and not interrupt.asked:
            self._keeping.evaluated(
                attempt.reporter, attempt.evaluations, time.monotonic() + SLICE_S
            )
            if beside:
                return
            if attempt.evaluations.running:
                yield from self._by_time(attempt)

    def _by_time(self, attempt: Attempt) -> Iterator[Report]:
        """A report if the last one has grown old, recorded if the last recorded one has or an
        evaluation has ended.
        """
        if attempt.reporter.due or (attempt.reporter.untold and not attempt.evaluations.solved):
            self._files.check_there()
            yield self._keeping.recorded(attempt.reporter.report(timed=True), attempt.reporter)
        elif time.monotonic() - attempt.reporter.reported_at >= LIVE_S:
            yield attempt.reporter.report(evaluating=attempt.evaluations.progress)

    def _last_evaluation(self, attempt: Attempt, interrupt: Interrupt) -> Generator[Report]:
        """Evaluate what waits, and the last weights; the summary was written before, for users that
        do not want to wait.
        """
        evaluations = attempt.evaluations
        evaluations.begin_rest()
        try:
            yield from self._examine(attempt, interrupt, beside=False)
            yield from self._by_time(attempt)
            if not evaluations.solved and not interrupt.asked:
                evaluations.end_rest()
                evaluations.begin_final(self.program.evaluation.episodes)
                yield from self._examine(attempt, interrupt, beside=False)
        finally:
            if not evaluations.solved:
                evaluations.end_rest()
        if said := evaluations.missing():
            attempt.reporter.note(said)
        # The last weights may be the first that reach the goal, or that there was time to evaluate.
        status = "solved" if attempt.evaluations.solved else "completed"
        self._keeping.ended(status, attempt.reporter, attempt.evaluations, whole=True)
