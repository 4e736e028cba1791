"""The cores of this machine: how many this process may use, in which order they store, how long this thread waited for one."""

from __future__ import annotations

import functools
import os
import platform

X86 = ("x86_64", "AMD64", "i686")


def usable() -> int:
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def order_of_stores() -> list[str]:
    """A warning where processes that share memory may see each other's stores in another order than they were made."""
    if platform.machine() in X86:
        return []
    return [
        f"warning: --on process counts on x86's order of stores, which {platform.machine()} does not promise; "
        "--on serial does not (docs/platforms.md)"
    ]


def run_delay_s() -> float:
    """The seconds that this thread was runnable without a core, from Linux's scheduler statistics; 0 elsewhere."""
    file = _schedstat(os.getpid())
    return 0.0 if file is None else int(os.pread(file, 64, 0).split()[1]) * 1e-9


@functools.cache
def _schedstat(pid: int) -> int | None:
    """The statistics file, open as long as the process lives: it is read around every wait."""
    try:
        return os.open(f"/proc/self/task/{pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
