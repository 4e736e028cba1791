"""A run from its first to its last moment: start the workers, report, evaluate, stop, save, sum up."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol

from torch import Tensor

from equipoise.actors.episodes import recent
from equipoise.balance.shares import Shares
from equipoise.balance.verdict import verdict
from equipoise.envs.capsule import COUNTED
from equipoise.runtime import build, forkserver
from equipoise.runtime.build import Blueprint, Shared
from equipoise.runtime.directory import RunDirectory, params_sha256
from equipoise.runtime.exam import Exam
from equipoise.runtime.interrupt import Interrupt
from equipoise.runtime.program import check
from equipoise.runtime.report import Evaluation, Report
from equipoise.types import Program, unroll_rows

On = Literal["serial", "process"]
SLICE_S = 0.05  # the driver's attention span
LIVE_S = 0.5  # a report at least this often, recorded or not
PROMISING_EPISODES = 20


class Runtime(Protocol):
    """What the driver asks of a runtime."""

    shared: Shared

    @property
    def done(self) -> bool: ...
    def advance(self, timeout_s: float) -> list[dict[str, Any]]: ...
    def stop(self) -> None: ...


def start(blue: Blueprint, on: On) -> Runtime:
    """Build the workers of a run where they are to work."""
    if on == "serial":
        from equipoise.runtime.serial import SerialRuntime

        return SerialRuntime(blue)
    if on == "process":
        from equipoise.runtime.process import ProcessRuntime

        return ProcessRuntime(blue)
    raise ValueError(f"expected on='serial' or 'process', got {on!r}")


class Run:
    """An iterator over the reports of a run; it begins with the first ``next`` and ends when the iterator does.

    Ending early (``close``, the end of a ``with`` block, Ctrl-C, the end of the program) stops the workers, saves the weights
    and writes the summary.
    """

    def __init__(self, program: Program, *, on: On = "process", out: Path | None = None) -> None:
        check(program)
        if on == "process":
            forkserver.prepare()
        self.program, self.on = program, on
        self._blue = build.blueprint(program)
        self._files = RunDirectory.create(out, program, on=on, notes=self._blue.spec.notes)
        self._blue = replace(self._blue, capsules=str(self._files.capsules))
        self.summary: dict[str, Any] | None = None
        self._reports = self._run()
        _close_at_exit(self)

    @property
    def directory(self) -> Path:
        return self._files.path

    def __iter__(self) -> Iterator[Report]:
        return self

    def __next__(self) -> Report:
        return next(self._reports)

    def close(self) -> None:
        self._reports.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> Generator[Report]:
        with Interrupt() as interrupt:
            yield from self._train(interrupt)

    def _train(self, interrupt: Interrupt) -> Generator[Report]:
        status = "failed"
        began = time.monotonic()
        runtime = start(self._blue, self.on)
        scribe = _Scribe(self._blue, runtime.shared, began, self.on)
        exam = Exam(self._blue, runtime.shared.weights)
        try:
            while not runtime.done and not exam.solved:
                interrupt.check()
                wait = 0.0 if exam.running and self.on == "process" else SLICE_S
                for record in runtime.advance(wait):
                    yield self._recorded(scribe.report(record))
                exam.consider(scribe.env_steps, recent(runtime.shared.episodes, PROMISING_EPISODES)[1])
                if exam.running:
                    self._examine(exam, scribe, interrupt)
                if time.monotonic() - scribe.reported_at >= LIVE_S:
                    yield scribe.report(None)
            status = "solved" if exam.solved else "completed"
        except (KeyboardInterrupt, GeneratorExit):
            status = "interrupted"
            raise
        finally:
            scribe.settle()
            if status != "solved":
                exam.snapshot()
            runtime.stop()
            exam.close()
            self._finish(status, scribe, exam, interrupt)
        last = self._recorded(scribe.report(None, final=True))
        self._files.close()
        yield last

    def _recorded(self, report: Report) -> Report:
        if report.recorded:
            self._files.write_report(report)
        return report

    def _examine(self, exam: Exam, scribe: _Scribe, interrupt: Interrupt) -> None:
        """Go on with an evaluation: beside training for a moment, or to its end where training has to wait for it."""
        while exam.running and not interrupt.asked:
            scribe.evaluated(exam.advance(time.monotonic() + SLICE_S), exam.solved)
            if self.on == "process":
                return

    def _finish(self, status: str, scribe: _Scribe, exam: Exam, interrupt: Interrupt) -> None:
        """The checkpoint, the summary and the last evaluation, also of a run that ended early."""
        params = exam.params()
        steps = exam.version * unroll_rows(self._blue.policy)
        self._files.save_checkpoint(steps, params, {"version": exam.version, "env_steps": steps, "status": status})
        self._sum_up(status, scribe, exam, params)
        if status == "completed" and self.program.evaluate_episodes:
            exam.begin_final(self.program.evaluate_episodes)
            while exam.running and not interrupt.asked:
                scribe.evaluated(exam.advance(time.monotonic() + SLICE_S), solved=False)
            exam.close()
            self._sum_up(status, scribe, exam, params)
        if status in ("interrupted", "failed"):
            self._files.close()

    def _sum_up(self, status: str, scribe: _Scribe, exam: Exam, params: Mapping[str, Tensor]) -> None:
        summary = scribe.summary(status, exam.version) | {"params_sha256": params_sha256(params)}
        self.summary = self._files.write_summary(summary)


class _Scribe:
    """Turns records and shared counters into reports, and adds them up for the summary."""

    def __init__(self, blue: Blueprint, shared: Shared, began: float, on: On) -> None:
        self._blue, self._shared, self._began, self._on = blue, shared, began, on
        self._per_update = unroll_rows(blue.policy)
        self._balance = shared.board.shares()
        self._since: tuple[float, int] = (began, 0)  # time and version of the last recorded report
        self._record: dict[str, Any] = {
            "version": 0, "lag_mean": 0.0, "lag_max": 0, "metrics": {}, "episodes": 0, "return_mean": None, "length_mean": None,
            "aborted": 0,
        }  # fmt: skip
        self._rate = 0.0
        self._lag_sum, self._lag_updates, self._lag_max = 0.0, 0, 0
        self._evaluation: Evaluation | None = None
        self._fresh: Evaluation | None = None
        self._solved_at: float | None = None
        self._ended: float | None = None
        self.reported_at = began

    @property
    def env_steps(self) -> int:
        return int(self._record["version"]) * self._per_update

    def evaluated(self, evaluation: Evaluation | None, solved: bool) -> None:
        if evaluation is not None:
            self._evaluation = self._fresh = evaluation
        if solved:
            self._solved_at = time.monotonic() - self._began

    def settle(self) -> None:
        """Training is over: from here on time counts no more."""
        self._ended = time.monotonic()

    def report(self, record: dict[str, Any] | None, *, final: bool = False) -> Report:
        """A recorded report of a learner's record, or one of the moment."""
        now = time.monotonic()
        if record is not None:
            at, version = self._since
            updates = record["version"] - version
            self._rate = updates / max(record["at"] - at, 1e-9)
            self._since = (record["at"], record["version"])
            self._lag_sum += record["lag_mean"] * updates
            self._lag_updates += updates
            self._lag_max = max(self._lag_max, record["lag_max"])
            self._record = record
        shares = self._shared.board.shares()
        balance = {name: _less(shares[name], self._balance[name]) for name in shares}
        if record is not None:
            self._balance = shares
        fresh, self._fresh = self._fresh, None
        self.reported_at = now
        r = self._record
        left = self._blue.updates - r["version"]
        wall = (self._ended or now) - self._began
        return Report(
            wall_s=wall,
            env_steps=self.env_steps,
            frames=self.env_steps * self._blue.spec.frame_skip,
            updates=r["version"],
            steps_per_s=self._rate * self._per_update,
            updates_per_s=self._rate,
            episodes=r["episodes"],
            return_mean=r["return_mean"],
            length_mean=r["length_mean"],
            lag_mean=r["lag_mean"],
            lag_max=r["lag_max"],
            balance=balance,
            verdict=self._verdict(balance),
            remaining_s=left / self._rate if self._rate > 0 and not final else None,
            metrics=r["metrics"],
            evaluation=fresh if not final else self._evaluation,
            solved_at_s=self._solved_at,
            recorded=record is not None or final,
            final=final,
            aborted=r["aborted"],
        )

    def _verdict(self, balance: dict[str, Shares]) -> str:
        return verdict(balance, max_lag=self._blue.program.max_lag, cores=_cores(), one_thread=self._on == "serial")

    def summary(self, status: str, version: int) -> dict[str, Any]:
        """What ``summary.json`` holds of the weights of ``version``, but for their hash."""
        wall = (self._ended or time.monotonic()) - self._began
        r, balance, steps = self._record, self._shared.board.shares(), version * self._per_update
        e = self._evaluation
        return {
            "status": status,
            "env_steps": steps,
            "frames": steps * self._blue.spec.frame_skip,
            "updates": version,
            "wall_s": wall,
            "steps_per_s": steps / wall,
            "updates_per_s": version / wall,
            "episodes": r["episodes"],
            "return_mean": r["return_mean"],
            "evaluation": None if e is None else {"mean": e.mean, "std": e.std, "episodes": e.episodes},
            "lag": {"mean": self._lag_sum / max(self._lag_updates, 1), "max": self._lag_max},
            "balance": {
                name: {"worked": s.worked, "preempted": s.preempted, "starved": s.starved, "blocked": s.blocked}
                for name, s in balance.items()
            },
            "verdict": self._verdict(balance),
            "solved_at_s": self._solved_at,
            "failures": {
                f"actor {i}": dict(zip(COUNTED, one.failures.tolist(), strict=True))
                for i, one in enumerate(self._shared.episodes)
            },
        }


def _close_at_exit(run: Run) -> None:
    """A program may end after a ``break``: the run is closed while the interpreter is still whole."""
    reference = weakref.ref(run)

    def close() -> None:
        if (still := reference()) is not None:
            still.close()

    atexit.register(close)


def _cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _less(now: Shares, then: Shares) -> Shares:
    busy = now.worked + now.preempted - then.worked - then.preempted
    preempted = min(max(now.preempted - then.preempted, 0.0), busy)
    return Shares(
        worked=busy - preempted,
        preempted=preempted,
        starved=now.starved - then.starved,
        blocked=now.blocked - then.blocked,
    )
