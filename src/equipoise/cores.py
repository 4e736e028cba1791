"""The cores of this machine: how many this process may use, and how long this thread waited for
one.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path


def usable() -> int:
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cgroup_folders(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """Folders of this process's control groups and of all groups around them. ``controller``: such
    as "cpu", or "" for version 2. ``root``: the folder of ``proc`` and ``sys``.
    """
    file = root / "proc/self/cgroup"
    lines = file.read_text().splitlines() if os.access(file, os.R_OK) else []
    mount = root / "sys/fs/cgroup" / controller
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controller in controllers.split(","):
            place = mount / path.strip("/")
            for directory in (place, *place.parents):
                yield directory
                if directory == mount:
                    break


def cgroup_cores(root: Path = Path("/")) -> float | None:
    """The processor time that the control groups allow, in cores; None if they set no limit."""
    limits = []
    for controller in ("", "cpu"):
        for folder in cgroup_folders(controller, root):
            try:
                if controller:
                    quota = (folder / "cpu.cfs_quota_us").read_text()
                    period = (folder / "cpu.cfs_period_us").read_text()
                else:
                    quota, period = (folder / "cpu.max").read_text().split()
                if quota.strip().isdigit():  # "max" or -1 if there is no limit
                    limits.append(int(quota) / int(period))
            except (OSError, ValueError, ZeroDivisionError):  # no such file, or not of this form
                continue
    return min(limits, default=None)


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
