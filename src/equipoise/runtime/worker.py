"""The body of a worker process: tick, or wait at the doorbell."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from typing import Any

import torch
from setproctitle import setproctitle

from equipoise.actors.worker import ActorWorker
from equipoise.runtime import build
from equipoise.runtime.build import Blueprint, Shared
from equipoise.runtime.handles import SharedQueue
from equipoise.runtime.ipc import Bell, Lifeline, Outbox
from equipoise.types import Tick, Worker

RECHECK_S = 0.02  # how long a lost ring can cost
LIFELINE_S = 0.5  # how often a worker that never waits looks whether the driver is alive
PR_SET_PDEATHSIG = 1
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEEP, LARGEST = 1 << 30, 32 << 20  # bytes that glibc keeps, and its largest threshold for what comes from the kernel anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Everything a worker is given."""

    name: str
    index: int  # of the actor, -1 for the learner
    blueprint: Blueprint
    shared: Shared
    queue: SharedQueue
    bell: Bell
    outbox: Outbox
    lifeline: Lifeline


def main(job: Assignment) -> None:
    """Run one worker until the stop word, the end of its work, or the end of the driver."""
    setproctitle(f"equipoise {job.name}")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the driver decides what it means
    faulthandler.enable()
    _tell_the_kernel_and_libc()
    try:
        worker = _build(job)
        _loop(job, worker)
        if isinstance(worker, ActorWorker):
            worker.env.close()
    except BaseException:
        with contextlib.suppress(OSError):
            job.outbox.send({"error": traceback.format_exc()})
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)  # no interpreter teardown: nothing of a worker outlives it that the kernel does not free


def _build(job: Assignment) -> Worker:
    if job.index < 0:
        torch.set_num_threads(job.blueprint.program.threads)
        return build.learner(job.blueprint, job.shared, job.queue, job.outbox.send)
    torch.set_num_threads(1)
    return build.actor(job.blueprint, job.index, job.shared, job.queue)


def _loop(job: Assignment, worker: Worker) -> None:
    meter, stop = job.shared.board.meter(job.name), job.shared.board.stop
    look_at = time.perf_counter() + LIFELINE_S
    while not stop[0]:
        state = worker.tick()
        now = meter.add(state)
        if state is not Tick.WORKED:
            job.bell.arm()
            state = worker.tick()
            if state is Tick.WORKED:
                job.bell.disarm()
            elif job.bell.wait(RECHECK_S, job.lifeline.fd):
                return
            meter.add(state)
        elif now > look_at:
            if job.lifeline.cut():
                return
            look_at = now + LIFELINE_S


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
