"""The body of a worker process: tick, or wait at the doorbell."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import select
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from setproctitle import setproctitle

from equipoise.actors.worker import ActorWorker
from equipoise.envs.capsule import EnvFailed
from equipoise.envs.checks import WrongValue
from equipoise.envs.infos import NoNumber
from equipoise.experience.dataset import Faulty
from equipoise.experience.shard import Shard
from equipoise.learners.learner import NonFiniteUpdate
from equipoise.learners.worker import LearnerWorker
from equipoise.nets.compiled import while_compiling
from equipoise.runtime import build, checkpoint
from equipoise.runtime.blueprint import Blueprint
from equipoise.runtime.build import Shared
from equipoise.runtime.cut import CannotResume, restored, save_worker, saved
from equipoise.runtime.handles import SharedQueue
from equipoise.runtime.ipc import Bell, Lifeline, Outbox, Pipe
from equipoise.types import Tick, Worker

Kind = Literal["learner", "actor", "shard"]
# A successor would come to the same: the run ends.
FINAL = (EnvFailed, WrongValue, NoNumber, NonFiniteUpdate, CannotResume, Faulty)
RECHECK_S = 0.02  # how long a lost ring can cost
COMPILE_S = 600.0  # that torch.compile may take
LIFELINE_S = 0.5  # how often a worker that never waits looks whether the driver is alive
PR_SET_PDEATHSIG = 1
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEEP, LARGEST = 1 << 30, 32 << 20  # bytes that glibc keeps, and its largest threshold for what comes from the kernel anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Everything a worker is given."""

    name: str
    kind: Kind
    index: int  # of the actor or the shard
    incarnation: int  # how many processes the worker had before
    blueprint: Blueprint
    shared: Shared
    queue: SharedQueue
    bell: Bell
    outbox: Outbox
    stack: Pipe  # where a worker that hangs says where
    lifeline: Lifeline
    saved: int  # the last cut before the process: its predecessor's, whether that saved anything or not

    @property
    def step(self) -> int:
        """Of the checkpoint that is being written."""
        return int(self.shared.board.cut["step"][0])


def main(job: Assignment) -> None:
    """Run one worker until the stop word, the end of its work, or the end of the driver."""
    setproctitle(f"equipoise {job.name}")
    # Ctrl-C and SIGTERM reach the whole group; the driver decides what they mean. A handler that does nothing, and not
    # SIG_IGN, which programs that an env starts would inherit.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, file=job.stack.write_fd, all_threads=True)
    _tell_the_kernel_and_libc()
    threading.Thread(target=_end_with_the_driver, args=(job.lifeline,), daemon=True).start()
    try:
        worker = _build(job)
        for note in build.compile_torsos(job.blueprint, worker):
            job.outbox.send({"note": note})
        if job.blueprint.resume and not job.incarnation and (said := restored(job.name, worker)):
            job.outbox.send({"note": said})
        _loop(job, worker)
        build.close(worker)
    except BaseException as error:
        with contextlib.suppress(OSError):
            job.outbox.send(
                {"error": traceback.format_exc(), "type": type(error).__qualname__, "final": isinstance(error, FINAL)}
            )
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)  # no interpreter teardown: nothing of a worker outlives it that the kernel does not free


def _end_with_the_driver(lifeline: Lifeline) -> None:
    """Also amid imports and the making of envs, which take seconds; the forkserver, our parent, outlives the driver."""
    select.select([lifeline.fd], [], [])
    os._exit(1)


def _build(job: Assignment) -> ActorWorker | LearnerWorker | Shard:
    if job.kind == "learner":
        torch.set_num_threads(job.blueprint.program.threads)
        return build.learner(
            job.blueprint, job.shared, job.queue, job.outbox.send, pulse=partial(job.shared.board.pulse, job.name),
            ask=job.queue.ask,
        )  # fmt: skip
    torch.set_num_threads(1)
    if job.kind == "shard":
        return build.shard(job.blueprint, job.index, job.shared, job.queue.block, job.incarnation, answer=job.queue.answer)
    return build.actor(job.blueprint, job.index, job.shared, job.queue, job.incarnation)


def _loop(job: Assignment, worker: Worker) -> None:
    meter, stop, cut = job.shared.board.meter(job.name), job.shared.board.stop, job.shared.board.cut
    save = cut["save_learner" if job.kind == "learner" else "save_actors"]
    still = Tick.STARVED if job.kind == "shard" else Tick.BLOCKED  # what a worker says that is ready to be saved
    last, writing = job.saved, False
    look_at = time.perf_counter() + LIFELINE_S
    if isinstance(worker, LearnerWorker):  # whose tick may last for minutes: it is at work, and does not hang
        for line in worker.lines.values():
            line.learner.pulse = partial(meter.add, Tick.WORKED)
    if job.blueprint.program.compile:  # in any tick: the first with other rows than those that were compiled for, say
        meter.expect(COMPILE_S)  # of the compiler's imports, which take seconds
        while_compiling(partial(meter.expect, COMPILE_S), partial(meter.expect, 0.0))
    while not stop[0]:
        wanted = int(save[0])  # before the tick: whatever a shard was asked for until the cut is done then
        state = worker.tick()
        now = meter.add(state)
        if writing and (rest := saved(worker)) is not None:
            writing = False
            job.outbox.send({"written": last} | rest)
        if state is not Tick.WORKED:
            if state is still and wanted > last:
                last = wanted
                writing = _save(job, worker, last) or writing
            job.bell.arm()
            state = worker.tick()
            if state is Tick.WORKED:
                job.bell.disarm()
            else:
                meter.waits(True)
                if job.bell.wait(RECHECK_S, job.lifeline.fd):
                    return
                meter.waits(False)
            meter.add(state)
        elif now > look_at:
            if job.lifeline.cut():
                return
            look_at = now + LIFELINE_S


def _save(job: Assignment, worker: Worker, cut: int) -> bool:
    """Write this worker's files into the checkpoint that is aside; what stands in the way is for the driver to say -> is there
    more, which is being written while the worker goes on?
    """
    place = checkpoint.aside(Path(job.blueprint.directory), job.step)
    try:
        files = save_worker(place, worker, job.index, job.queue)
    except (OSError, TypeError, ValueError) as error:  # a full disk, or a state that cannot be written
        job.outbox.send({"saved": cut, "error": f"{type(error).__name__}: {error}"})
        return False
    job.outbox.send({"saved": cut, "files": files or {}, "more": files is None})
    return files is None


def _tell_the_kernel_and_libc() -> None:
    """Die with the parent; and keep freed memory, since a learner's temporaries come and go with every batch.

    The second saves their page faults: 10 to 20 % of a learner step of an MLP at 8192 rows. Elsewhere than on Linux with
    glibc the lifeline alone has to do, and memory is returned as the platform likes.
    """
    if sys.platform != "linux":
        return
    libc: Any = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST)
        libc.mallopt(M_TRIM_THRESHOLD, KEEP)
