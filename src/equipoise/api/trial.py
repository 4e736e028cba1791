"""Trials of studies: one stretch of training in this process, and the process that trains one
after the other (``main``).
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from equipoise.programs.settings import convert
from equipoise.studies.executor import Job, Progress
from equipoise.studies.history import Result
from equipoise.studies.messages import event_line, read_job
from equipoise.studies.settings import CHOICES, PROGRAMS, STUDY, read_study
from equipoise.types import On

if TYPE_CHECKING:
    from equipoise.record.summary import Summary
    from equipoise.run.run import Run

PROGRESS_S = 0.2
ENDED = ("solved", "alarmed")  # of a trial that does not go on
LONGEST_ERROR = 2_000  # letters
UNLOCKED_S = 60.0  # for a process of an earlier study to save the trial and leave it


def train_stretch(
    job: Job,
    *,
    on: On,
    trust: Sequence[str],
    moved: Callable[[Progress], object],
    stopped: Callable[[], bool],
) -> Result | None:
    """Train one trial on to ``job.to`` env steps -> the result; None if it was stopped. The result
    of a trial that fails has the reason.
    """
    began, worked = time.monotonic(), sum(os.times()[:4])
    told, reached = 0.0, 0
    state: Literal["paused", "done", "failed"]

    def at(steps: int) -> bool:
        nonlocal told, reached
        reached = steps
        if time.monotonic() > told + PROGRESS_S:
            told = time.monotonic()
            moved(Progress(trial=job.trial, steps=steps))
        return not stopped()

    try:
        with _alone(job):
            summary = None if stopped() else _trained(job, on, trust, at)
        if summary is None:
            return None
        reached = int(summary["env_steps"])
        state, error = ("done" if summary["status"] in ENDED else "paused"), ""
        alarms = tuple(str(one["name"]) for one in summary["alarms"] or ())
        evaluation = summary["evaluation"]
        score = summary["return_mean"] if evaluation is None else evaluation["mean"]
    except Exception as failure:  # the envs and the algorithm of a user may raise anything
        from equipoise.hints import raised, shortened

        state, alarms, score = "failed", (), None
        error = shortened(raised(failure), LONGEST_ERROR)
        print(f"{job.trial}: {error}", file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    cores = len(os.sched_getaffinity(0))
    return Result(
        trial=job.trial,
        steps=reached,
        state=state,
        score=None if score is None else float(score),
        alarms=alarms,
        error=error,
        seconds=round(seconds, 3),
        # Processes of a run are another process's children: their cores are held for as long.
        core_seconds=round(sum(os.times()[:4]) - worked if on == "serial" else seconds * cores, 3),
    )


def _trained(job: Job, on: On, trust: Sequence[str], at: Callable[[int], bool]) -> Summary | None:
    """Train -> the run's summary; None if it was stopped. ``at`` is called with the env steps so
    far, and returns whether to train on.
    """
    from equipoise.api.training import NothingToDo
    from equipoise.record.directory import RunDirectory
    from equipoise.studies.mirrored import bring, copy_end

    bring(job)
    try:
        run = _run_of(job, on, trust)
    except NothingToDo:  # an earlier process trained it, and was ended before it could report
        summary = RunDirectory.open(job.directory, trusted=trust).summary()
    else:
        with run:
            for report in run:
                if not at(report.env_steps):
                    return None
        summary = run.summary
        if summary is not None and summary["status"] == "interrupted":
            return None
    assert summary is not None
    if job.keep_cut:
        _keep_cut(job.directory, int(summary["env_steps"]))
        _check_live(job)
    copy_end(job)  # a result at the study's URL is one that every machine can go on from
    return summary


def _run_of(job: Job, on: On, trust: Sequence[str]) -> Run:
    """The run of a trial that begins, is cloned, or goes on."""
    from equipoise import api
    from equipoise.api.training import Order, resumed, run_of
    from equipoise.programs.fields import alter
    from equipoise.programs.settings import pairs
    from equipoise.record.mirror import holds
    from equipoise.tuning.choice import read_choices

    study = read_study(job.study)
    # that of the study; only trials on Ray use it themselves
    cluster = dict(pairs(study.cluster)) if on == "ray" else {}
    settings = [f"{key}={value}" for key, value in job.settings.items()]
    held = holds(job.directory)
    if held == "a beginning":  # killed before its first checkpoint
        shutil.rmtree(job.directory)
    if held != "a run" and job.source is not None:
        from equipoise.record.cloning import clone
        from equipoise.studies.mirrored import parent_of

        with parent_of(job) as parent:
            clone(parent, job.directory, step=job.source_steps)
        held = "a run"
    if held == "a run":
        changed = settings if job.source is not None else ()
        return resumed(
            job.directory,
            {
                "steps": job.to,
                "settings": changed,
                "on": on,
                "trust": trust,
                "cluster": cluster,  # it may be another one than before
            },
            mirror=job.remote,
        )
    own = job.study / PROGRAMS / f"{job.trial}.json"
    if own.is_file():
        program = api.configured(own, trust=trust)
    else:
        program = api.configured(job.study / STUDY, trust=trust, settings=settings)
        schedule = program.schedule
        program = alter(
            program,
            steps=job.to,
            schedule_steps=schedule.schedule_steps or job.of,
            seed=schedule.seed if job.seed is None else job.seed,
        )
    return run_of(
        program,
        Order(
            on=on,
            out=job.directory,
            init_from=study.init_from or None,
            init_what=study.init_what,
            tensorboard=study.tensorboard,
            report_to=study.report_to,
            tell=print,
            asked=(),
            cluster=cluster,
            or_resume=False,
            trust=trust,
            choices=read_choices(job.study / CHOICES),
            mirror=job.remote,
        ),
    )


@contextmanager
def _alone(job: Job) -> Iterator[None]:
    """Wait until no process of an earlier study has the trial, and lock it by its log."""
    from equipoise.record import paths

    job.log.parent.mkdir(exist_ok=True)
    job.log.touch()
    end = time.monotonic() + UNLOCKED_S
    while paths.is_locked(job.log) and time.monotonic() < end:
        time.sleep(0.05)
    handle = paths.lock(job.log)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _keep_cut(directory: Path, step: int) -> None:
    """Keep the checkpoints of the last two results, which other trials may be cloned from."""
    from equipoise.record.cloning import pin, pinned, unpin

    pin(directory, step)
    for old in pinned(directory)[:-2]:
        unpin(directory, old)


def _check_live(job: Job) -> None:
    """ValueError if the learner trained with other settings than the study decided."""
    from equipoise.record.cloning import live_settings

    live = live_settings(job.directory)
    for key, value in job.settings.items():
        if key in live and live[key] != value:
            raise ValueError(f"{key}: must be {value!r}, as decided, got {live[key]!r}")


# ------------------------------------------------------------------------------------- the process


class _Requests:
    """The commands of the study, read beside the training."""

    def __init__(self, file: int) -> None:
        self._file = os.fdopen(file, "rb")
        self._jobs: list[Job | None] = []
        self._changed = threading.Condition()
        self._stop = False
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> Job | None:
        """Return the next job; None at the end of the study."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._jobs))
            self._stop = False
            return self._jobs.pop(0)

    def stopped(self) -> bool:
        """Is the present job to end now?"""
        with self._changed:
            return self._stop or None in self._jobs

    def _read(self) -> None:
        for line in self._file:
            job = read_job(line)
            with self._changed:
                if job is None:
                    self._stop = True
                else:
                    self._jobs.append(job)
                self._changed.notify()
        with self._changed:
            self._jobs.append(None)
            self._changed.notify()


def serve(commands: int, events: int, on: On, trust: Sequence[str]) -> None:
    """Train the jobs that arrive until there are no more; results go to ``events``."""
    commands, events = _out_of_reach(commands), _out_of_reach(events)
    requests = _Requests(commands)
    import_module("equipoise.api.training")  # it takes seconds, and the study may not be ready yet

    def send(event: Progress | Result | None) -> None:
        with suppress(BrokenPipeError):  # the study was killed: the trial is saved all the same
            os.write(events, event_line(event))

    while (job := requests.next()) is not None:
        _print_into(job.log)
        vouched = [*trust, *job.trust]
        send(train_stretch(job, on=on, trust=vouched, moved=send, stopped=requests.stopped))


def _out_of_reach(file: int) -> int:
    """A file descriptor under a high number: an env that closes the low ones does not close it."""
    import fcntl

    high = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 100)
    os.close(file)
    return high


def _print_into(log: Path) -> None:
    """Send what this process prints from here on to the end of a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def main() -> None:
    """Serve the study that started this process (``studies.local.command``)."""
    commands, events, _, on, *trust = sys.argv[1:]
    serve(int(commands), int(events), convert(on, On, "on"), trust)
