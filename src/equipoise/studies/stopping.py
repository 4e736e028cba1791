"""Stopping a study from another process."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

from equipoise.files import json_bytes, read_json, write_atomic
from equipoise.record.paths import is_locked
from equipoise.studies.settings import read_study

PROCESS = "process.json"  # the process that runs the study
WAIT_S = 90.0


def write_process(folder: Path) -> None:
    """Record this process as the one that runs the study."""
    data = {"pid": os.getpid(), "host": socket.gethostname()}
    write_atomic(folder / PROCESS, json_bytes(data), synced=False)


def stop_study(folder: Path) -> None:
    """Ask the process that runs a study to save its trials and end, and wait for its end.

    ValueError if no process runs it, or one of another machine does.
    """
    read_study(folder)
    if not is_locked(folder):
        raise ValueError(f"{folder}: must be a study that a process runs, got one that none runs")
    data = read_json(folder / PROCESS, most=1000)
    pid, host = data.get("pid"), data.get("host")
    if host != socket.gethostname() or not isinstance(pid, int) or pid <= 1:
        raise ValueError(
            f"{folder}: must be stopped on {host}, which runs it, got this machine, "
            f"{socket.gethostname()}"
        )
    os.kill(pid, signal.SIGINT)
    end = time.monotonic() + WAIT_S
    while is_locked(folder):
        if time.monotonic() > end:
            raise ValueError(
                f"{folder}: must end within {WAIT_S:.0f} s, got process {pid} still at work; wait, "
                f"or kill it: 'equipoise tune resume {folder}' goes on"
            )
        time.sleep(0.1)
