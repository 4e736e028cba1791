"""Limits of processes that do what nobody has vouched for: the kernel ends such a process, whatever
code it is in.
"""

from __future__ import annotations

import math
import resource
import sys
from pathlib import Path


def limit_cpu(seconds: float) -> None:
    """Let this process have as many further seconds of processor time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    lower(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + seconds))


def limit_memory(memory: int) -> None:
    """Let this process take as many further bytes (on Linux), and write no core file."""
    lower(resource.RLIMIT_CORE, 0)
    if sys.platform == "linux":
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        lower(resource.RLIMIT_AS, taken + memory)


def lower(what: int, to: int) -> None:
    """Set a limit, at most the hard one."""
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (to if hard == resource.RLIM_INFINITY else min(to, hard), hard))
