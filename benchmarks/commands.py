"""A command of ours as a process: its lines with their times, and the processes that outlive it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import end

MARK = "EQUIPOISE_BENCHMARK"  # in the environment of all that a command starts
GRACE_S = 10.0  # for the processes of a command that has ended


class Command:
    """``equipoise WORDS`` as a process in the folder ``place``; stdout and stderr are one pipe,
    read as the lines come.
    """

    def __init__(self, python: Path, words: Sequence[str], place: Path, **env: str) -> None:
        self.mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self.began = time.perf_counter()
        self.lines: list[tuple[float, str]] = []
        self.process = subprocess.Popen(
            [str(python), "-m", "equipoise", *words],
            cwd=place,
            text=True,
            errors="replace",
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, MARK: self.mark, **env},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((self.now(), line.rstrip("\n")))

    def now(self) -> float:
        return time.perf_counter() - self.began

    def ended(self, limit_s: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(limit_s)
        return self.process.poll() is not None

    def close(self) -> list[str]:
        """Kill what is left -> the processes that outlived the command."""
        until = time.perf_counter() + GRACE_S  # what was told to leave may be on its way
        while (
            (left := sorted(marked(self.mark))) and self.ended(0.0) and time.perf_counter() < until
        ):
            time.sleep(0.05)
        end(self.process)
        for pid, _ in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._reader.join(5.0)
        if self.process.stdout is not None and not self._reader.is_alive():
            self.process.stdout.close()
        return [text for _, text in left]


def marked(mark: str) -> Iterator[tuple[int, str]]:
    """(pid, command) of the living processes with this mark, whatever session they are in."""
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (place / "environ").read_bytes().split(b"\0"):
                yield (
                    int(place.name),
                    (place / "cmdline")
                    .read_bytes()
                    .replace(b"\0", b" ")
                    .decode(errors="replace")
                    .strip(),
                )
