"""Stopping a study from another process: a file in its directory asks for it, so that no process
is signalled by a number that a file holds.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from equipoise.files import json_bytes, write_atomic
from equipoise.record.paths import is_locked
from equipoise.studies.settings import read_study

PROCESS = "process.json"  # the process that runs the study, for people
STOP = "stop"  # a request, for the process that holds the study's lock
WAIT_S = 90.0


def write_process(folder: Path) -> None:
    """Record this process, which has the study's lock; an old request to stop is removed."""
    data = {"pid": os.getpid(), "host": socket.gethostname()}
    write_atomic(folder / PROCESS, json_bytes(data), synced=False)
    (folder / STOP).unlink(missing_ok=True)


def to_stop(folder: Path) -> bool:
    """Has another process asked this study to stop?"""
    return os.path.lexists(folder / STOP)


def stop_study(folder: Path) -> None:
    """Ask the process that runs a study to save its trials and end, and wait for its end.

    ValueError if no process runs it.
    """
    read_study(folder)
    if not is_locked(folder):
        raise ValueError(f"{folder}: must be a study that a process runs, got one that none runs")
    write_atomic(folder / STOP, b"", synced=False)
    end = time.monotonic() + WAIT_S
    while is_locked(folder):
        if time.monotonic() > end:
            raise ValueError(
                f"{folder}: must end within {WAIT_S:.0f} s, got a process still at work, see "
                f"{PROCESS}; wait, or kill it: 'equipoise tune resume {folder}' goes on"
            )
        time.sleep(0.1)
