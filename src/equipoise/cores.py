"""The cores of this machine: how many this process may use, and how long this thread waited for
one.
"""

from __future__ import annotations

import functools
import os
import time


def usable() -> int:
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def busy(seconds: float = 0.5) -> float:
    """The number of cores at work on this machine, as the mean over ``seconds``; 0 if the system
    does not report it.
    """
    before = _worked()
    if before is None:
        return 0.0
    time.sleep(seconds)
    after, tick = _worked() or before, os.sysconf("SC_CLK_TCK")
    return (after - before) / tick / seconds


def _worked() -> int | None:
    """The ticks of all cores that were not idle, from Linux's statistics."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, *others = map(int, file.readline().split()[1:9])
    except (OSError, ValueError):
        return None
    return user + nice + system + sum(others)


def run_delay_s() -> float:
    """The seconds that this thread was runnable without a core, from Linux's scheduler statistics;
    0 elsewhere.
    """
    file = _schedstat(os.getpid())
    return 0.0 if file is None else int(os.pread(file, 64, 0).split()[1]) * 1e-9


def waited_s(pid: int) -> float:
    """The seconds that a process's main thread was runnable without a core; 0 if the system does
    not report it.

    A deadline for another process is no deadline for the machine: these seconds are not its own.
    """
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):  # no such statistics, or no such process any more
        return 0.0


@functools.cache
def _schedstat(pid: int) -> int | None:
    """The statistics file, open as long as the process lives: it is read around every wait."""
    try:
        return os.open(f"/proc/self/task/{pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
