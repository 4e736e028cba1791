"""A machine that is a quarter as fast: a process and all that it started run for a quarter of the
time, stopped in between.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

RUNS_S, STOPS_S = 0.05, 0.15


def tree_of(pid: int) -> list[int]:
    """The process and its descendants; empty once it has ended."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
                parents.setdefault(int(file.read().rpartition(b")")[2].split()[1]), []).append(
                    int(name)
                )
    found = [pid] if os.path.exists(f"/proc/{pid}") else []
    for one in found:
        found += parents.get(one, [])
    return found


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def slowly(pid: int, *, runs_s: float = RUNS_S, stops_s: float = STOPS_S) -> Iterator[None]:
    """Slow the process ``pid`` and its descendants down, those that it starts meanwhile as well."""
    ends = threading.Event()

    def duty() -> None:
        while not ends.wait(runs_s):
            stopped = tree_of(pid)
            _signal(stopped, signal.SIGSTOP)
            time.sleep(stops_s)
            _signal(stopped, signal.SIGCONT)

    thread = threading.Thread(target=duty, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
