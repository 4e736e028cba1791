"""A run from its first to its last moment: start the workers, report, evaluate, stop, save, sum up."""

from __future__ import annotations

import inspect
import platform
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from equipoise.deaths import Streak
from equipoise.envs.check.info_probe import unseen
from equipoise.errors import CannotStart, Damaged, WorkerFailed, forget_locals
from equipoise.experience.recorded.dataset import Dataset
from equipoise.files import parse_json, plain
from equipoise.nets.precision import emulated
from equipoise.programs.limits import check_processes
from equipoise.programs.program import differences
from equipoise.programs.refusals import check
from equipoise.record import checkpoint, playable
from equipoise.record.checkpoint import Entry, Source
from equipoise.record.directory import RunDirectory, params_sha256
from equipoise.record.report import Report, step_of
from equipoise.run import forward_choice as acting
from equipoise.run.evaluation_schedule import EvaluationSchedule
from equipoise.run.reporter import Reporter
from equipoise.run.saving import RunState, Saving
from equipoise.run.session import SESSION, Interrupt
from equipoise.runtime import blueprint
from equipoise.runtime.blueprint import Blueprint
from equipoise.runtime.messages import Cut, Message, Note, Record
from equipoise.runtime.process import forkserver
from equipoise.runtime.stats import RunStats
from equipoise.schema import check as check_schema
from equipoise.types import EnvSpec, Program, WeightStore, learning
from equipoise.workers.kind import Kind
from equipoise.workers.kinds import KINDS

On = Literal["serial", "process"]
X86 = ("x86_64", "AMD64", "i686")
SLICE_S = 0.05  # the driver's attention span
LIVE_S = 0.5  # a report at least this often, recorded or not
CHECKPOINT_S = 120.0  # between two checkpoints, where the program does not say
LAST_CUT_S = 20.0  # what a run that is told to leave takes at most to hold still; clusters kill it after 30


class Runtime(Protocol):
    """What the driver asks of a runtime; it reads nothing of a runtime's memory."""

    @property
    def done(self) -> bool: ...  # learned to the end, and saved
    def poll(self, timeout_s: float) -> list[Message]: ...  # what workers said: records, notes and cuts; may raise WorkerFailed
    def hold(self) -> None: ...  # ask for a cut after the next version
    def release(self, cut: Cut) -> None: ...  # the run goes on
    def stats(self) -> RunStats: ...  # also after ``stop``
    def weights(self, policy: str) -> WeightStore: ...
    def stop(self) -> None: ...  # end every worker


def start(blue: Blueprint, on: On, kinds: Sequence[Kind] = KINDS) -> Runtime:
    """Build the workers of a run where they are to work. ``kinds``: what there is besides, or instead, of ours."""
    if on == "serial":
        from equipoise.runtime.serial import SerialRuntime

        return SerialRuntime(blue, kinds)
    if on == "process":
        from equipoise.runtime.process.process import ProcessRuntime

        return ProcessRuntime(blue, kinds)
    raise ValueError(f"expected on='serial' or 'process', got {on!r}")


@dataclass(slots=True)
class _Ring:
    """The workers that run now and what the driver knows of them; a new one after a failure of the learner."""

    runtime: Runtime
    scribe: Reporter
    exam: EvaluationSchedule
    furthest: int = 0  # version that any ring of the run had come to when it failed
    streak: Streak = field(default_factory=Streak)  # of rings; progress is a version that none before had come to


class Run:
    """An iterator over the reports of a run; it begins with the first ``next`` and ends when the iterator does.

    Ending early (``close``, the end of a ``with`` block, Ctrl-C, SIGTERM, the end of the program) stops the workers, saves
    the run and writes the summary.
    """

    def __init__(
        self, program: Program, *, on: On = "process", out: Path | None = None, weights: Path | None = None,
        learner: bool = False, resume: RunDirectory | None = None, source: Source | None = None, tensorboard: bool = True,
        wandb: str | None = None, chosen: Mapping[str, Any] | None = None, kinds: Sequence[Kind] = KINDS,
    ) -> None:  # fmt: skip
        """A new run in ``out``, begun with the weights of the checkpoint ``weights``, and with ``learner`` all that its learner
        had; or one that goes on (``resume``).

        ``source``: the checkpoint that it goes on from, by default its newest whole one.
        ``tensorboard``: does it write event files; ``wandb``: the W&B project that it reports to. A resume keeps both.
        ``chosen``: what was measured for this program, which run.json tells. ``kinds`` of workers that the run is made of.
        """
        check(program)
        if on == "process":
            check_processes(program)
            forkserver.prepare(central=program.placement.inference == "central")
        self.program, self.on, self._kinds = program, on, tuple(kinds)
        self.changes: dict[str, list[Any]] = {}  # of a run that goes on: {setting: [before, now]}
        self._warnings: list[str] = []
        if on == "process" and platform.machine() not in X86:
            self._warnings.append(
                f"warning: --on process counts on x86's order of stores, which {platform.machine()} does not promise; "
                "--on serial does not (docs/platforms.md)"
            )
        self._source = source if resume is None or source is not None else resume.whole_checkpoint()
        self._damaged: dict[Path, str] = {}  # checkpoints that a worker could not load, and why
        if resume is None:
            blue = blueprint.blueprint(program, weights=weights, learner=learner)
            if program.source.metrics:
                self._warnings += unseen(program.env, program.source.metrics, seed=program.schedule.seed)
            forward = acting.chosen(blue)
            self._files = RunDirectory.create(
                out, program, on=on, notes=blue.notes, tensorboard=tensorboard, wandb=wandb,
                extra=_recorded(blue.dataset) | {acting.KEY: forward} | dict(chosen or {}), spec=playable.to_json(blue),
            )  # fmt: skip
        else:
            assert self._source is not None
            blue = blueprint.blueprint(program, resume=self._source)
            _same(resume.run, blue.dataset)
            self.changes = differences(resume.program, program)
            forward = acting.chosen(blue, resume.run, self.changes)
            resume.go_on(
                program, on=on, step=step_of(self._source.meta), changes=self.changes, extra={acting.KEY: forward},
                spec=playable.to_json(blue), source=self._source,
            )  # fmt: skip
            self._files = resume
        self._warnings += _doubts(program, blue.dataset)
        self._warnings += emulated(program.placement.precision, program.placement.acting, program.placement.device)
        self._blue = replace(
            blue, resume=None, directory=str(self._files.checkpoints.absolute()), capsules=str(self._files.capsules.absolute()),
            forward=acting.forwards(forward),
        )  # fmt: skip
        self.summary: dict[str, Any] | None = None
        self._inbox: deque[Message] = deque()
        self._kept = -1  # the version of the newest whole checkpoint
        self._parts: tuple[dict[str, Entry], Any] | None = None  # of one whose rest is written: files, the driver's state
        self._saved_at = 0.0
        self._save = Saving()
        self._known = RunState(steps=program.schedule.steps, directory=self._files.path)
        self._reports = self._run()
        SESSION.close_at_exit(self)

    @property
    def directory(self) -> Path:
        return self._files.path

    def __iter__(self) -> Iterator[Report]:
        return self

    def __next__(self) -> Report:
        return self._save.reports.popleft() if self._save.reports else self._next()

    def _next(self) -> Report:
        report = next(self._reports)
        self._known = self._known.after(report)
        return report

    def save(self) -> Path:
        """Write a checkpoint of the whole run now -> its directory, which ``resume`` and ``init_from`` can begin from.

        The run goes on until the next version, where it holds still; a run that has not begun begins. What is reported
        meanwhile comes with the next reports. OSError where the checkpoint could not be written.
        """
        if inspect.getgeneratorstate(self._reports) == inspect.GEN_RUNNING:
            raise RuntimeError("save: expected a call between two reports, got one from within, or from another thread")
        self._save.begin()
        while self._save.result is None and (report := self._drawn()) is not None:
            if report.recorded or report.notes or report.evaluation is not None:
                self._save.reports.append(report)
        if isinstance(self._save.result, str):
            raise OSError(f"{self.directory}: expected to write a checkpoint, got: {self._save.result}")
        return self._save.result or self._files.whole_checkpoint(self._damaged).path

    def _drawn(self) -> Report | None:
        """The next report; None where the run is over."""
        try:
            return self._next()
        except StopIteration:
            return None

    def state(self) -> RunState:
        """Where the run is, as of its last report."""
        saved = self._blue.pace.steps(self._kept) if self._kept >= 0 else None
        ended = "" if self.summary is None else str(self.summary["status"])
        return replace(self._known, status=ended or self._known.status, saved=saved)

    def close(self) -> None:
        self._reports.close()
        self._save.reports.clear()
        self._files.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> Generator[Report]:
        try:
            with Interrupt() as interrupt:
                yield from self._train(interrupt)
        except Exception as error:
            if self.on == "process":
                forget_locals(error)
            raise
        finally:
            self._files.close()

    def _begin(self, began: float) -> tuple[Runtime, Reporter, EvaluationSchedule]:
        """Start the workers, from the checkpoint ``_source`` where there is one."""
        blue, source = replace(self._blue, resume=self._source), self._source
        try:
            runtime = start(blue, self.on, self._kinds)
        except Damaged as error:  # found by a worker that is built here
            self._fall_back(str(error))
            return self._begin(began)
        scribe = Reporter(blue, runtime.stats, began, self.on)
        exam = EvaluationSchedule(blue, runtime.weights)
        if source is not None:
            self._kept, file = source.version, source.path / checkpoint.DRIVER
            driver = parse_json(source.read(checkpoint.DRIVER), file)
            source.kept.clear()
            check_schema(driver, {"scribe": scribe.schema(self._kept), "exam": exam.schema(self._kept)}, str(file))
            scribe.load(driver["scribe"], self._files.best_evaluation())
            exam.load(driver["exam"])
            scribe.note(f"resumed at step {blue.pace.steps(self._kept):,}: {promise(blue.spec.env)}")
        done = (blue.before or 0) + max(self._kept, 0)
        changes = any(policy.optimizer.schedule != "constant" for policy in blue.policies.values())
        if done and changes and done >= blue.schedule_updates:
            scribe.note(
                "warning: the schedules have come to their end, so the learning rate is 0; "
                "--set schedule.schedule_steps=N stretches them, --set optimizer.schedule=constant gives them up"
            )
        return runtime, scribe, exam

    def _again(self, ring: _Ring, error: WorkerFailed) -> _Ring:
        """After a failure that no replacement of one worker mends: the whole ring, from the newest checkpoint."""
        if error.death.cause == Damaged.__name__ and self._source is not None:
            self._end(ring)
            self._fall_back(error.traceback_text.rstrip().rpartition("\n")[2].partition(": ")[2])
            return _Ring(*self._begin(time.monotonic()))
        reached = ring.runtime.stats().version  # what fails at one version would fail there for ever
        ring.streak.add(error.death, progress=reached > ring.furthest)
        hopeless = ring.streak.hopeless(error.death, learned_at=0.0, give_up_s=self.program.placement.give_up_s)
        if not error.vital or error.final:
            raise error
        if hopeless:
            raise WorkerFailed(error.worker, f"{error.reason}, {hopeless}", error.traceback_text, death=error.death) from error
        self._end(ring)
        self._source = self._files.newest_whole(self._damaged)
        runtime, scribe, exam = self._begin(time.monotonic() if self._source else ring.scribe.began)
        self._files.rewind(0 if self._source is None else step_of(self._source.meta), self._source)
        said = f"\n{error.traceback_text.rstrip()}" if error.traceback_text else ""
        scribe.note(f"warning: {error.worker} {error.reason}; the run goes on from step {scribe.step:,}{said}")
        furthest = max(reached, ring.furthest)
        return _Ring(runtime, scribe, exam, furthest=furthest, streak=ring.streak)

    def _end(self, ring: _Ring) -> None:
        """Stop a ring that another takes the place of, and forget what it said."""
        ring.runtime.stop()
        ring.exam.close()
        self._inbox.clear()
        self._parts = None
        self._save.lost()

    def _fall_back(self, why: str) -> None:
        """Go on from the checkpoint before the one that a worker could not load; ``WorkerFailed`` where there is none."""
        assert self._source is not None
        self._damaged[self._source.path] = why
        try:
            self._source = self._files.whole_checkpoint(self._damaged)
        except ValueError as error:
            raise WorkerFailed("checkpoint", str(error), final=True) from None
        self._files.rewind(step_of(self._source.meta), self._source)

    def _train(self, interrupt: Interrupt) -> Generator[Report]:
        status = "failed"
        try:
            runtime, scribe, exam = self._begin(time.monotonic())
        except (OSError, MemoryError) as error:
            if (told := CannotStart.of(error)) is None:
                raise
            if self._source is None:
                self._files.discard()
            raise told from error
        ring = _Ring(runtime, scribe, exam)
        for warning in self._warnings:
            scribe.note(warning)
        self._saved_at = time.monotonic()
        try:
            while not ring.runtime.done and not ring.exam.solved:
                interrupt.check()
                if self._save.due(busy=self._parts is not None):
                    ring.runtime.hold()
                try:
                    self._inbox.extend(ring.runtime.poll(0.0 if ring.exam.running and self.on == "process" else SLICE_S))
                except WorkerFailed as error:
                    interrupt.check()
                    ring = self._again(ring, error)
                while self._inbox:
                    if (report := self._handle(self._inbox.popleft(), ring)) is not None:
                        yield report
                if ring.exam.waits:
                    ring.exam.consider(ring.scribe.step, ring.runtime.stats().recent_return)
                yield from self._examine(ring, interrupt, beside=self.on == "process")
                if self.program.schedule.checkpoint_every is None and time.monotonic() - self._saved_at >= CHECKPOINT_S:
                    self._saved_at = time.monotonic()
                    ring.runtime.hold()
                if time.monotonic() - ring.scribe.reported_at >= LIVE_S:
                    yield ring.scribe.report(None, evaluating=ring.exam.progress)
            status = "solved" if ring.exam.solved else "completed"
        except (KeyboardInterrupt, GeneratorExit):
            status = "interrupted"
            raise
        finally:
            whole = status in ("interrupted", "solved") and self._last_cut(ring)
            ring.scribe.settle()
            if status != "solved":
                ring.exam.snapshot()
            ring.runtime.stop()
            ring.exam.close()
            self._finish(status, ring, whole=whole or self._kept == ring.exam.version)
        if status == "completed" and self.program.evaluation.episodes:
            yield from self._last_exam(ring, interrupt)
        last = self._recorded(ring.scribe.report(None, final=True), ring)
        self._files.close()
        yield last

    def _handle(self, message: Message, ring: _Ring) -> Report | None:
        """A record becomes a report, a cut a checkpoint, a note is told."""
        if isinstance(message, Cut):
            self._keep(message, ring)
            ring.runtime.release(message)
            return None
        if isinstance(message, Note):
            ring.scribe.note(message.text)
            return None
        assert isinstance(message, Record), message  # what else workers say is for the runtime
        return self._recorded(ring.scribe.report(message), ring)

    def _recorded(self, report: Report, ring: _Ring) -> Report:
        if report.recorded:
            try:
                self._files.confirm()
                self._files.write_report(report)
            except OSError as error:
                ring.scribe.note(f"warning: a report was not written: {error}")
        return report

    def _keep(self, cut: Cut, ring: _Ring) -> bool:
        """The driver's part of a checkpoint, and its name once all is written. A full disk costs a checkpoint, not the run.

        Whether the run goes on is for the caller: after the last one it does not, so that what is summed up is what was saved.
        """
        if cut.late and self._parts is None:  # given up before
            return False
        self._saved_at = time.monotonic()
        # As it is now, while the run holds still: plain() copies.
        files, driver = self._parts or ({}, plain({"scribe": ring.scribe.state(), "exam": ring.exam.state()}))
        self._parts, error = (cut.files, driver) if cut.more else None, cut.error
        if cut.more:
            return True
        if error is None:
            try:
                path = self._files.complete_checkpoint(
                    cut.step, files | cut.files, cut.segments, driver, self._meta(cut.version)
                )
                self._kept = cut.version
                self._save.done(path)
            except OSError as problem:
                error = str(problem)
        if error is not None:
            self._save.done(error)
            checkpoint.abandon(self._files.checkpoints, cut.step)
            ring.scribe.note(f"warning: no checkpoint at step {cut.step:,}: {error}")
        return error is None

    def _last_cut(self, ring: _Ring) -> bool:
        """Save the whole run before it ends early; False where there is nothing to save yet, or it took too long or failed."""
        if ring.runtime.stats().version == 0:
            return False
        until, holds = time.monotonic() + LAST_CUT_S, False
        try:
            ring.runtime.hold()
            # What is being written has no limit: a second Ctrl-C ends that.
            while (self._parts is not None or time.monotonic() < until) and not ring.runtime.done:
                while self._inbox:
                    message = self._inbox.popleft()
                    if isinstance(message, Cut) and (holds or not message.late):
                        kept, holds = self._keep(message, ring), True
                        if not message.more:
                            return kept
                    else:
                        self._handle(message, ring)
                self._inbox.extend(ring.runtime.poll(SLICE_S))
        except Exception as error:  # whatever it is, the weights and the summary are still to be written
            ring.scribe.note(f"warning: no last checkpoint: {type(error).__name__}: {error}")
            return False
        if not ring.runtime.done:
            ring.scribe.note(f"warning: no last checkpoint of the whole run within {LAST_CUT_S:.0f} s; its weights are saved")
        return False

    def _examine(self, ring: _Ring, interrupt: Interrupt, *, beside: bool) -> Generator[Report]:
        """Go on with an evaluation: ``beside`` training for a moment, or to its end, with reports of how far it is."""
        while ring.exam.running and not interrupt.asked:
            self._advance_exam(ring)
            if beside:
                return
            if time.monotonic() - ring.scribe.reported_at >= LIVE_S:
                yield ring.scribe.report(None, evaluating=ring.exam.progress)

    def _advance_exam(self, ring: _Ring) -> None:
        """A slice of an evaluation; where it ended with the best mean so far its weights are kept."""
        evaluation = ring.exam.advance(time.monotonic() + SLICE_S)
        ring.scribe.evaluated(evaluation, ring.exam.solved)
        if evaluation is not None and evaluation.mean > self._files.best_mean():
            meta = self._meta(evaluation.version) | {"status": "best"}
            self._save_weights(self._files.save_best, ring, meta | {"evaluation": evaluation})

    def _finish(self, status: str, ring: _Ring, *, whole: bool) -> None:
        """What is still to be saved of the weights, and the summary, also of a run that ended early."""
        meta = self._meta(ring.exam.version) | {"status": status, "evaluation": ring.exam.last}
        if status == "solved" or not whole:
            self._save_weights(self._files.save_best if status == "solved" else self._files.save_checkpoint, ring, meta)
        self._sum_up(status, ring)

    def _last_exam(self, ring: _Ring, interrupt: Interrupt) -> Generator[Report]:
        """Evaluate the last weights; the summary was written without that, for who does not want to wait."""
        try:
            ring.exam.begin_final(self.program.evaluation.episodes)
            yield from self._examine(ring, interrupt, beside=False)
        finally:
            ring.exam.close()
        status = "solved" if ring.exam.solved else "completed"
        if ring.exam.solved:  # the last weights are the first that reach the goal, or that there was time to evaluate
            meta = self._meta(ring.exam.version) | {"status": status, "evaluation": ring.exam.last}
            self._save_weights(self._files.save_best, ring, meta)
        self._sum_up(status, ring)

    def _meta(self, version: int) -> dict[str, Any]:
        """What a checkpoint says of itself."""
        schedule = self.program.schedule.schedule_steps or self.program.schedule.steps
        return {"version": version, "env_steps": self._blue.pace.env_steps(version), "schedule_steps": schedule}

    def _save_weights(self, save: Callable[..., Path], ring: _Ring, meta: dict[str, Any]) -> None:
        try:
            save(step_of(meta), ring.exam.params(), meta)
        except OSError as error:
            ring.scribe.note(f"warning: the weights of step {step_of(meta):,} are not saved: {error}")

    def _sum_up(self, status: str, ring: _Ring) -> None:
        summary = ring.scribe.summary(status, ring.exam.version) | {"params_sha256": params_sha256(ring.exam.params())}
        try:
            self.summary = self._files.write_summary(summary)
        except OSError as error:
            ring.scribe.note(f"warning: the summary was not written: {error}")
            self.summary = plain(summary)


def promise(spec: EnvSpec) -> str:
    """What a resume restores, in a sentence."""
    envs = {
        "exact": "envs go on exactly where they were",
        "replay": "envs are brought back by playing their episodes again",
        "restart": "envs cannot be restored: their episodes begin anew",
    }[spec.resume]
    return f"weights, optimisers, experience and random generators are exact; {envs}"


def _recorded(dataset: Dataset | None) -> dict[str, Any]:
    """What ``run.json`` says of a data set that is learned from."""
    if dataset is None:
        return {}
    facts = {"path": str(dataset.path), "episodes": dataset.episodes, "steps": dataset.steps, "sha256": dataset.sha256()}
    return {"dataset": {"name": dataset.name} | facts}


def _doubts(program: Program, dataset: Dataset | None) -> list[str]:
    """What is odd about learning from a data set in this way, though it can be done."""
    if dataset is None:
        return []
    policy, found = next(iter(learning(program).values())), []
    assert policy.replay is not None
    alone = program.actors == 0
    if (
        alone
        and program.source.env
        and not program.evaluation.episodes
        and dataset.env
        and _id(dataset.env) != _id(program.name)
    ):
        found.append(
            f"warning: {dataset.name} is of {dataset.env}, not of {program.name}, which is never made: "
            "there are neither actors nor evaluations"
        )
    items = policy.batch if alone else policy.replay.recorded(policy.batch)
    if items > dataset.steps:
        found.append(
            f"warning: batch: {items:,} items of a batch are of {dataset.name}, which has {dataset.steps:,} "
            "rows: each comes again and again in one batch"
        )
    return found


def _id(target: str) -> str:
    """Without what says where it is found."""
    return target.rpartition(":")[2]


def _same(run: Mapping[str, Any], dataset: Dataset | None) -> None:
    """ValueError where a run would go on with other rows: a checkpoint counts on those that it was saved with."""
    if dataset is not None and (got := dataset.sha256()) != (wanted := run["dataset"]["sha256"]):
        raise ValueError(
            f"{dataset.name}: expected the rows that the run began with (sha256 {wanted[:12]}...), got others "
            f"({got[:12]}...) in {dataset.path}"
        )
