"""CPU seconds and memory of processes from Linux's ``/proc``; nothing on other systems."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

# the title of the process that starts the workers, in which they take turns with --on serial
DRIVER = "driver"
EVERY_S = 1.0  # a process is looked at no more often
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    """The resources that a process has used, and has."""

    cpu_s: float  # of all its threads, since it began
    rss: int  # bytes of memory, the parts of shared memory that it has touched among them
    own: int  # without files, and without what it shares with other processes


def usage(pid: int) -> Usage | None:
    """The usage of a process; None if it has ended, or the kernel does not report it."""
    try:
        stat, statm = (Path(f"/proc/{pid}/{name}").read_text() for name in ("stat", "statm"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    # its name, in brackets, may hold anything
    user, system = stat.rpartition(")")[2].split()[11:13]
    _, resident, shared, *_ = map(int, statm.split())
    return Usage((int(user) + int(system)) * TICK_S, resident * PAGE, (resident - shared) * PAGE)


class Usages:
    """The usage of some processes, read at most once in ``EVERY_S``."""

    def __init__(self) -> None:
        self._read_at = -EVERY_S
        self._found: dict[str, Usage] = {}

    def __call__(self, pids: Mapping[str, int]) -> Mapping[str, Usage]:
        """By the names of ``pids``; of a process that has ended, its last numbers."""
        now = time.monotonic()
        if now - self._read_at >= EVERY_S:
            self._read_at = now
            self._found |= {
                name: found for name, pid in pids.items() if (found := usage(pid)) is not None
            }
        return self._found
