"""Trials on this machine, in processes that each train one trial after the other: only the first
pays for the imports.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from equipoise.runtime.process.log import keep_small
from equipoise.studies.executor import Job, Progress
from equipoise.studies.history import Result
from equipoise.studies.losses import Losses
from equipoise.studies.messages import job_line, read_event

END_S = 60.0  # for a process to save its trial and end, before it is killed
GONE_S = 5.0  # for a process that sends nothing any more to end, before it is killed
LONGEST_LINE = 1 << 20

# the command line of a process, by its file descriptors for commands and events, and its cores
Command = Callable[[int, int, Sequence[int]], list[str]]


def core_shares(cores: Sequence[int], jobs: int) -> list[list[int]]:
    """Return the cores of each job: shares of their own, or one core each if there are more jobs
    than cores.
    """
    n = len(cores)
    if jobs >= n:
        return [[cores[job % n]] for job in range(jobs)]
    return [list(cores[job * n // jobs : (job + 1) * n // jobs]) for job in range(jobs)]


@dataclass(slots=True, eq=False)
class _Process:
    """One process for trials, and its present job."""

    process: subprocess.Popen[bytes]
    commands: int  # file descriptors
    events: int
    job: Job | None = None
    text: bytes = b""  # of an event that has arrived in part
    stopped: str = ""  # the trial whose end nobody waits for
    kill_at: float = float("inf")

    def wait(self, seconds: float) -> int:
        """Wait for its end, kill it after so many seconds -> its exit code."""
        try:
            self.process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            self.process.kill()
        code = self.process.wait()
        with suppress(ProcessLookupError):  # what an env has forked
            os.killpg(self.process.pid, signal.SIGKILL)
        return code


# A process is bound to its cores before torch counts them: it would start a thread for each core
# of the machine. What is installed comes before a file of the same name that lies here.
BEGIN = """
import os, sys
os.sched_setaffinity(0, [int(core) for core in sys.argv[3].split(",")])
if sys.path[:1] == [""]:
    sys.path.append(sys.path.pop(0))
from equipoise.api.trial import main
main()
"""


def command(on: str, trust: Sequence[str]) -> Command:
    """Return the command of processes for trials, whose workers run ``on``."""

    def words(commands: int, events: int, cores: Sequence[int]) -> list[str]:
        shares = ",".join(map(str, cores))
        return [sys.executable, "-c", BEGIN, str(commands), str(events), shares, on, *trust]

    return words


class LocalExecutor:
    """At most ``jobs`` processes, which ``command`` starts."""

    def __init__(self, command: Command, jobs: int) -> None:
        self._command = command
        self.trust: Sequence[str] = ()  # code that the user vouched for
        self._cores = core_shares(sorted(os.sched_getaffinity(0)), jobs)
        self._slots: list[_Process | None] = [None] * jobs
        self._waiting: list[Job] = []  # for a process whose stopped trial is being saved
        self._losses = Losses()
        self._events: list[Progress | Result] = []
        self._selector = selectors.DefaultSelector()

    def prepare(self) -> None:
        """Start the first process before there is a job: it imports in the meantime."""
        self._slots[0] = self._started(0, None)

    def begin(self, job: Job) -> None:
        self._losses.begin(job.trial)
        self._waiting.append(replace(job, trust=tuple(self.trust)))
        self._assign()

    def stop(self, trial: str) -> None:
        self._waiting = [job for job in self._waiting if job.trial != trial]
        for one in self._slots:
            if one is not None and one.job is not None and one.job.trial == trial:
                one.stopped, one.kill_at = trial, time.monotonic() + END_S
                self._send(one, b'{"stop": true}\n')

    def poll(self, timeout_s: float) -> Sequence[Progress | Result]:
        for key, _ in self._selector.select(0.0 if self._events else timeout_s):
            self._read(key.data)
        for one in self._slots:
            if one is None:
                continue
            if one.job is not None:
                keep_small(one.job.log)
            if time.monotonic() > one.kill_at:
                one.process.kill()
            # What an env has forked holds the pipe open, so that its end is not seen.
            if one.process.poll() is not None and one in self._slots and not self._read(one):
                self._lost(one)
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        self._waiting.clear()
        left = [one for one in self._slots if one is not None]
        for one in left:
            self._selector.unregister(one.events)
            os.close(one.commands)  # at the end of its commands a process saves its trial and ends
            os.close(one.events)
        end = time.monotonic() + END_S
        for one in left:
            if one.job is None:  # it has nothing to save, and may still import
                one.process.kill()
            one.wait(end - time.monotonic())
        self._slots = [None] * len(self._slots)
        self._selector.close()

    def _assign(self) -> None:
        for place, one in enumerate(self._slots):
            if not self._waiting:
                return
            if one is None:
                one = self._slots[place] = self._started(place, self._waiting[0])
            if one.job is None:
                one.job = self._waiting.pop(0)
                self._send(one, job_line(one.job))

    def _started(self, place: int, job: Job | None) -> _Process:
        reads, commands = os.pipe()
        events, writes = os.pipe()
        # for what it prints before it has a job
        with (Path(os.devnull) if job is None else job.log).open("ab") as log:
            process = subprocess.Popen(
                self._command(reads, writes, self._cores[place]),
                pass_fds=(reads, writes),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C reaches the study alone, which ends its trials
            )
        os.close(reads)
        os.close(writes)
        os.set_blocking(events, False)
        started = _Process(process, commands, events)
        self._selector.register(events, selectors.EVENT_READ, started)
        return started

    def _send(self, one: _Process, line: bytes) -> None:
        with suppress(BrokenPipeError):  # it has ended, which its end of the events shows
            os.write(one.commands, line)

    def _read(self, one: _Process) -> bool:
        """Take the events that have arrived; False if there are none."""
        try:
            data = os.read(one.events, 1 << 16)
        except BlockingIOError:
            return False
        *lines, one.text = (one.text + data).split(b"\n")
        events: list[Progress | Result | None] = []
        try:
            events += [read_event(line) for line in lines]
        except ValueError:  # an env wrote into it
            data = b""
        if not data or len(one.text) > LONGEST_LINE:
            self._lost(one)
            return True
        for event in events:
            self._take(one, event)
        return True

    def _take(self, one: _Process, event: Progress | Result | None) -> None:
        if isinstance(event, Progress):
            if not one.stopped:
                self._losses.reach(event.trial, event.steps)
                self._events.append(event)
            return
        job = None if one.stopped else one.job
        if event is None and job is not None:  # nobody stopped it
            event = self._again(job, "ended without a result")
        if event is not None and job is not None:
            self._events.append(event)
        self._free(one)

    def _again(self, job: Job, how: str) -> Result | None:
        """A job was lost: begin it again; its result instead if that has happened too often."""
        result = self._losses.lose(job, how)
        if result is None:
            self._waiting.append(job)
        return result

    def _free(self, one: _Process) -> None:
        if one.job is not None:
            keep_small(one.job.log)
        one.job, one.stopped, one.kill_at = None, "", float("inf")
        self._assign()

    def _lost(self, one: _Process) -> None:
        """A process has ended: its job begins again, unless that has happened too often."""
        self._selector.unregister(one.events)
        os.close(one.events)
        os.close(one.commands)
        code = one.wait(GONE_S)
        self._slots[self._slots.index(one)] = None
        if one.job is not None:
            keep_small(one.job.log)
        if one.job is not None and not one.stopped:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            if (result := self._again(one.job, f"ended by {how}")) is not None:
                self._events.append(result)
        self._assign()
