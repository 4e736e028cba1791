"""Workers that are killed from outside, again and again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator, Sequence

from tests.conftest import descendants


@contextlib.contextmanager
def killing(worker: str, killed: set[int], *, times: int, every_s: float = 0.01) -> Iterator[None]:
    """SIGKILL for a worker, by its name, as soon as it has one; at most so many ``times``."""
    over = threading.Event()

    def kill() -> None:
        while len(killed) < times and not over.wait(every_s):
            for pid in [
                int(d.split()[0]) for d in descendants() if d.endswith(f"equipoise {worker}")
            ]:
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


@contextlib.contextmanager
def killing_some(
    workers: Sequence[str], killed: list[str], *, times: int, draw: random.Random, most_s: float
) -> Iterator[None]:
    """SIGKILL for some of these workers, ``times`` in all, each at most ``most_s`` after the one
    before.
    """
    over = threading.Event()

    def kill() -> None:
        while len(killed) < times and not over.wait(draw.uniform(0.0, most_s)):
            worker = draw.choice(workers)
            for pid in [
                int(d.split()[0]) for d in descendants() if d.endswith(f"equipoise {worker}")
            ]:
                killed.append(worker)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
