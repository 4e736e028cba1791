"""The loop of every worker process: tick, or wait at the doorbell. Nothing here loads torch."""

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
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from setproctitle import setproctitle

from equipoise import memory
from equipoise.cores import usable
from equipoise.errors import Final
from equipoise.hints import trace
from equipoise.runtime.board import Board, Meter
from equipoise.runtime.ipc import Bell, Lifeline, Outbox, Pipe
from equipoise.runtime.messages import Failed, Note, to_json
from equipoise.runtime.process.forkserver import OURS, SAFE_PATH
from equipoise.runtime.process.log import Log, log_of
from equipoise.runtime.workerfiles import Saver
from equipoise.types import Tick, Worker

RECHECK_S, LONGEST_RECHECK_S = (
    0.02,
    0.16,
)  # the most that a lost ring can cost; the second for a worker that has not been rung for long
SPIN_S = 1e-4
CORES = usable()
PACKAGE = str(Path(__file__).parents[2])
LOG_S = 1.0  # how often a process looks how large its log is
LIFELINE_S = 0.5  # how often a busy worker looks whether the driver is alive
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """The things that every worker process is given."""

    name: str
    board: Board
    bell: Bell
    outbox: Outbox
    stack: Pipe  # a hanging worker writes its stack here
    lifeline: Lifeline
    logs: str | None  # the directory of the logs; None: the process prints where the driver does


def live(duty: Duty, work: Callable[[], object]) -> None:
    """Do the ``work`` in this process until it ends, and report what it raises."""
    setproctitle(f"equipoise {duty.name}")
    # Ctrl-C and SIGTERM reach the whole group; the driver decides what they mean. A handler that
    # does nothing, and not SIG_IGN, which programs that an env starts would inherit.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)
    log = None if duty.logs is None else Log(log_of(duty.logs, duty.name))
    if log is not None:
        try:
            log.begin()
        except OSError as error:
            duty.outbox.send(to_json(Note(text=f"warning: {duty.name} has no log: {error}")))
            log = None
        else:
            warnings.showwarning = partial(_warned, duty)
    # the fork server needed it; programs that an env starts look for modules as always
    if os.environ.get(SAFE_PATH) == OURS:
        del os.environ[SAFE_PATH]
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, file=duty.stack.write_fd, all_threads=True)
    _end_with_parent()
    memory.keep_freed()
    threading.Thread(target=_end_with_the_driver, args=(duty.lifeline, log), daemon=True).start()
    try:
        work()
    except BaseException as error:
        with contextlib.suppress(OSError):
            failed = Failed(
                error=type(error).__qualname__,
                text=trace(error),
                final=isinstance(error, Final),
                said=str(error),
            )
            duty.outbox.send(to_json(failed))
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)  # no interpreter teardown: the kernel frees everything of a worker


def _warned(
    duty: Duty,
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Write a warning into the log; the project's own warnings also become notes. Takes the place
    of ``showwarning``.
    """
    print(
        warnings.formatwarning(message, category, filename, lineno, line),
        end="",
        file=file or sys.stderr,
        flush=True,
    )
    if issubclass(category, RuntimeWarning) and filename.startswith(PACKAGE):
        duty.outbox.send(to_json(Note(text=f"warning: {duty.name}: {message}")))


def _end_with_the_driver(lifeline: Lifeline, log: Log | None) -> None:
    """End this process when the driver ends, also during imports and the making of envs; our
    parent, the fork server, lives on. Meanwhile keep the log small.
    """
    while not select.select([lifeline.fd], [], [], None if log is None else LOG_S)[0]:
        if log is not None:
            log.keep_small()
    os._exit(1)


class Spin:
    """Spinning for a moment before going to sleep: waking up takes 20 us and more, and costs the
    waker as much.

    It is done while it pays: after a sleep that ended within that moment, until a moment passes in
    vain. It needs a core for each of these workers (``of``), since it would take another worker's
    time otherwise.
    """

    def __init__(self, of: int) -> None:
        self._pays, self._may = False, 1 < of <= CORES

    def __call__(self, tick: Callable[[], Tick], add: Callable[[Tick], float]) -> bool:
        """Spin -> was there work within a moment? ``add`` gets the result of each tick."""
        until = time.perf_counter() + SPIN_S
        while self._pays:
            state = tick()
            if add(state) > until or state is Tick.WORKED:
                self._pays = state is Tick.WORKED
                return self._pays
            os.sched_yield()
        return False

    def slept(self, seconds: float) -> None:
        self._pays = self._may and seconds < SPIN_S


def loop(
    duty: Duty,
    worker: Worker,
    meter: Meter,
    saver: Saver,
    *,
    spin: Spin | None = None,
    patience: Callable[[], float | None] = lambda: None,
    listens: Callable[[], Sequence[int]] = tuple,
) -> None:
    """Tick until the stop word or the end of the driver. ``patience``: how long the next tick may
    be put off, in seconds; ``listens``: which descriptors wake the worker as its doorbell does, at
    the moment.
    """
    stop, ready, wanted_by, recheck_s = duty.board.stop, worker.ready, saver.wanted, RECHECK_S
    look_at = time.perf_counter() + LIFELINE_S
    while not stop[0]:
        # read before the tick: a shard has done all earlier requests then
        wanted = int(wanted_by[0])
        state = worker.tick()
        now = meter.add(state)
        recheck_s = RECHECK_S if state is Tick.WORKED else recheck_s
        if saver.late is not None:
            saver.poll()
        if state is not Tick.WORKED:
            if state is ready and wanted > saver.last:
                saver.save(wanted)
            if spin is not None and spin(worker.tick, meter.add):
                continue
            duty.bell.arm()
            state = worker.tick()
            if state is Tick.WORKED:
                duty.bell.disarm()
                recheck_s = RECHECK_S
            else:
                meter.waits(True)
                wait_s = patience()
                slept_at = time.perf_counter()
                if duty.lifeline.fd in duty.bell.wait(
                    recheck_s if wait_s is None else wait_s, duty.lifeline.fd, *listens()
                ):
                    return
                slept_s = time.perf_counter() - slept_at
                recheck_s = (
                    min(2 * recheck_s, LONGEST_RECHECK_S) if slept_s > recheck_s else RECHECK_S
                )
                if spin is not None:
                    spin.slept(slept_s)
                meter.waits(False)
            meter.add(state)
        elif now > look_at:
            if duty.lifeline.cut():
                return
            look_at = now + LIFELINE_S


def _end_with_parent() -> None:
    """Ask the kernel to end this process with its parent; elsewhere than on Linux the lifeline
    alone has to do.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
