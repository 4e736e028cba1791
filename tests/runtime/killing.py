"""Workers that are killed from outside, again and again."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

from tests.conftest import descendants


@contextlib.contextmanager
def killing(worker: str, killed: set[int], *, times: int, every_s: float = 0.01) -> Iterator[None]:
    """SIGKILL for a worker, by its name, as soon as it has one; at most so many ``times``."""
    over = threading.Event()

    def kill() -> None:
        while len(killed) < times and not over.wait(every_s):
            for pid in [int(d.split()[0]) for d in descendants() if d.endswith(f"equipoise {worker}")]:
                if pid not in killed:
                    killed.add(pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
