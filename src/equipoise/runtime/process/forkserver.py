"""The servers that workers are forked from, which import once for all of them, and in parallel with
the driver's imports:

so nothing here imports torch, and the command line calls ``prepare`` before anything that does.
Python's own server is that of workers that learn or act, and has torch; env workers have one of
their own, which has not.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from functools import partial
from multiprocessing import forkserver, process

from equipoise.errors import CannotStart
from equipoise.private.forkserver import ForkServer, ServedProcess, forget, pid, stop

ENV_PRELOAD = ["equipoise.runtime.process.worker", "equipoise.workers.env"]
PRELOAD = [
    *ENV_PRELOAD,
    "equipoise.workers.kinds",
    "equipoise.runtime.stats",
    "equipoise.runtime.process.handles",
    "equipoise.algorithms.ppo",
    "equipoise.algorithms.impala",
]

SAFE_PATH, OURS = "PYTHONSAFEPATH", "equipoise"
# GNU's OpenMP lets threads that wait for each other spin for some ms, for which they take the cores
# from other workers. A short spin loses nothing alone (``benchmarks/waiting.py``).
SPINS, POLICY, SHORT = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "20000"

# Linux takes sockets of paths up to 107 characters
LONGEST_PLACE = 107 - len("/pymp-12345678/listener-12345678")
# to start a process if its server ends; a server that was killed may be started again
TRIES, PAUSE_S = 3, 0.1

_envs = ForkServer()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=partial(forget, _envs))


class ServerEnded(RuntimeError):
    """The server of a process ended while it imported, as often as it was started."""


def start(process: process.BaseProcess) -> None:
    """Start a process from its server. If that has ended, another one is started, ``TRIES`` times
    in all.
    """
    for attempt in range(TRIES):
        try:
            process.start()
            return
        except (EOFError, ConnectionError):
            time.sleep(PAUSE_S)
            if attempt == TRIES - 1:
                names = ", ".join(ENV_PRELOAD if isinstance(process, EnvProcess) else PRELOAD)
                raise ServerEnded(
                    f"could not be started: the server that it is forked from ended {TRIES} times "
                    f"while it imported {names}. Its output is above; without any, it was "
                    "killed, perhaps for want of memory"
                ) from None


def prepare(*, central: bool = False, torch: bool = True) -> None:
    """Start them, if they do not run yet; that of env workers if inference is ``central``, the
    other with ``torch``.
    """
    multiprocessing.set_forkserver_preload(PRELOAD)
    _envs.set_forkserver_preload(ENV_PRELOAD)
    if threading.current_thread() is not threading.main_thread():
        _ensure_running(central, torch)
        return
    # They inherit this: Ctrl-C and a SIGTERM to the whole group are for the driver to answer, also
    # while a server imports, and a server's end is its workers'.
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        _ensure_running(central, torch)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ensure_running(central: bool, torch: bool) -> None:
    # The servers are started with -c, which looks for Python's own modules in the working directory
    # first: a random.py there would take the place of Python's.
    said = dict(os.environ)
    os.environ[SAFE_PATH] = said.get(SAFE_PATH) or OURS
    if POLICY not in said:
        os.environ.setdefault(SPINS, SHORT)
    try:
        if torch:
            forkserver.ensure_running()
        if central:
            _envs.ensure_running()
    except OSError as error:
        if "AF_UNIX" not in str(error):
            raise
        place = tempfile.gettempdir()
        raise CannotStart(
            "the run cannot start, since its processes talk through sockets in the temporary "
            "directory, whose path has "
            f"{len(place)} characters, expected at most {LONGEST_PLACE}: {place}; set TMPDIR=/tmp"
        ) from error
    finally:
        os.environ.update(said)
        for name in {SAFE_PATH, SPINS} - said.keys():
            os.environ.pop(name, None)


def release() -> None:
    """End the server of env workers if no env worker runs. A later need starts another."""
    if not any(isinstance(child, EnvProcess) for child in multiprocessing.active_children()):
        stop(_envs)


class EnvProcess(ServedProcess):
    """A process without torch."""

    server = _envs


def pids() -> set[int]:
    """Process ids of the running servers."""
    return {found for found in (pid(), pid(_envs)) if found is not None}
