"""The server that workers are forked from. It imports torch once for all of them, and in parallel with the driver's import:

so nothing here imports torch, and the command line calls ``prepare`` before anything that does.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from multiprocessing import forkserver

PRELOAD = ["equipoise.runtime.worker", "equipoise.algorithms.ppo", "equipoise.algorithms.impala"]


def prepare() -> None:
    """Start it, if it does not run yet."""
    multiprocessing.set_forkserver_preload(PRELOAD)
    if threading.current_thread() is not threading.main_thread():
        forkserver.ensure_running()
        return
    # It inherits this: a SIGTERM to the whole group is for the driver to answer, and the server's end is the workers'.
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGTERM, before)
