"""The server that workers are forked from. It imports torch once for all of them, and in parallel with the driver's import:

so nothing here imports torch, and the command line calls ``prepare`` before anything that does.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver

PRELOAD = ["equipoise.runtime.worker", "equipoise.algorithms.ppo", "equipoise.algorithms.impala"]


def prepare() -> None:
    """Start it, if it does not run yet."""
    multiprocessing.set_forkserver_preload(PRELOAD)
    forkserver.ensure_running()
