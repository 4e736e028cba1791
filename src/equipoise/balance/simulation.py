"""A simulation of processes that share cores: the base of ``model.py``.

A process is a generator. It yields a number to sleep that number of seconds, a ``Use`` to compute
on a machine's cores, or a ``Gate`` to wait until another process opens it. Cores are shared evenly:
if more threads compute than there are cores, each gets its part of them (processor sharing), as
Linux's scheduler does over more than some milliseconds.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Use:
    """Compute: ``seconds`` that it takes with a core for each of ``threads``."""

    cores: Cores
    seconds: float
    threads: int = 1


class Gate:
    """Processes wait here until it opens; then they go on, and look themselves what there is."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._waiting: deque[Process] = deque()

    def join(self, process: Process) -> None:
        self._waiting.append(process)

    def open(self, most: int | None = None) -> None:
        """Let all waiting processes go on, or the first ``most`` of them."""
        for _ in range(len(self._waiting) if most is None else min(most, len(self._waiting))):
            self._simulation.ready.append(self._waiting.popleft())


Process = Generator["float | Use | Gate", None, None]


class Cores:
    """The cores of one machine; with one core a link, which all traffic on it shares."""

    def __init__(self, simulation: Simulation, count: float) -> None:
        self._simulation, self._count = simulation, count
        # a heap: when its work is done, by the clock of ``_served``
        self._jobs: list[tuple[float, int, int, Process]] = []
        # seconds of service that a thread which was here from the beginning would have had
        self._served = 0.0
        self._at, self._rate, self._threads = 0.0, 1.0, 0

    def add(self, process: Process, use: Use) -> None:
        self._serve()
        heapq.heappush(
            self._jobs,
            (self._served + use.seconds, self._simulation.number(), use.threads, process),
        )
        self._change(use.threads)

    def finish(self) -> None:
        """The job that is done first is done now."""
        self._serve()
        done, _, threads, process = heapq.heappop(self._jobs)
        self._served = max(self._served, done)
        self._change(-threads)
        self._simulation.ready.append(process)

    def _serve(self) -> None:
        self._served += (self._simulation.now - self._at) * self._rate
        self._at = self._simulation.now

    def _change(self, threads: int) -> None:
        self._threads += threads
        self._rate = min(1.0, self._count / self._threads) if self._threads else 1.0
        when = (
            self._at + max(self._jobs[0][0] - self._served, 0.0) / self._rate
            if self._jobs
            else None
        )
        self._simulation.awaits(self, when)


class Simulation:
    """The clock, and the events that are due."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self.ready: deque[Process] = deque()
        self._numbers = 0  # so that equal times are dealt with in the order of their making
        # a heap of sleepers, and of cores whose next job ends then
        self._times: list[tuple[float, int, Process | Cores]] = []
        # the entry of each machine's cores that counts; other entries are out of date
        self._current: dict[int, int] = {}

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def awaits(self, cores: Cores, when: float | None) -> None:
        """The next job of these cores ends then; None: there is no job."""
        entry = self._current[id(cores)] = self.number()
        if when is not None:
            heapq.heappush(self._times, (when, entry, cores))

    def start(self, process: Process) -> None:
        self.ready.append(process)

    def step(self) -> bool:
        """Run all that may go on, then pass the time to the next event -> is there any?"""
        while self.ready:
            self._resume(self.ready.popleft())
        while self._times:
            when, entry, what = heapq.heappop(self._times)
            if isinstance(what, Cores):
                if self._current[id(what)] != entry:
                    continue
                self.now = when
                what.finish()
            else:
                self.now = when
                self.ready.append(what)
            return True
        return False

    def _resume(self, process: Process) -> None:
        self.events += 1
        asked = next(process, None)
        if asked is None:
            return
        if isinstance(asked, Use):
            asked.cores.add(process, asked)
        elif isinstance(asked, Gate):
            asked.join(process)
        else:
            heapq.heappush(self._times, (self.now + asked, self.number(), process))
