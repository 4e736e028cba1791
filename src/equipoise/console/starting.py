"""The start of a command: a line for each long phase, and Ctrl-C even while Python cannot answer.

Signals reach Python between two of its instructions. One call of a C library, such as the
factorisation that initialises a large network, may take a minute. During the call a thread notices
that the user wants to leave, if the library lets threads run.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Self, TextIO

from equipoise import phases
from equipoise.console.place import is_descriptor, is_live, say, width_of
from equipoise.console.unread import opened
from equipoise.private import multiprocessing
from equipoise.runtime.process.log import STDERR

# until a phase has a line, and between two lines of a phase
FIRST_S, EVERY_S = 0.6, 4.0
LOOK_S = 0.1
LEAVE_S = 1.5  # from a signal until the process leaves though Python was not asked
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@dataclass(frozen=True, slots=True)
class _Asked:
    """A signal, and what the main thread was at when it came."""

    number: int
    at: float
    frame: FrameType | None
    instruction: int


def _main_is_at() -> tuple[FrameType | None, int]:
    """The frame of the main thread and the instruction in it: while a C library is called both stay
    as they are.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame, -1 if frame is None else frame.f_lasti


class Starting:
    """A context manager around a start, in the main thread; call ``end`` once the command has a
    display of its own.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._text, self._began, self._told = "", 0.0, 0.0
        # the output of a run may go elsewhere during its start (``aside.py``)
        self._out: TextIO = (
            opened(os.dup(STDERR), sys.stderr) if is_descriptor(sys.stderr, STDERR) else sys.stderr
        )
        # a terminal's line is written over, and gone when the command shows something itself
        self._live, self._shows = is_live(self._out), False
        self._over = threading.Event()
        self._wakes, self._signals = socket.socketpair()
        self._signals.setblocking(False)
        self._thread = threading.Thread(target=self._look, daemon=True, name="starting")
        self._before, self._wakeup_before = phases.listen(self._say), -1

    def __enter__(self) -> Self:
        self._wakeup_before = signal.set_wakeup_fd(
            self._signals.fileno(), warn_on_full_buffer=False
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """Print nothing more, and leave signals to the former handlers."""
        if self._over.is_set():
            return
        self._over.set()
        phases.listen(self._before)
        signal.set_wakeup_fd(self._wakeup_before)
        self._thread.join()
        self._erase()
        self._wakes.close()
        self._signals.close()
        if self._out is not sys.stderr:
            self._out.close()

    def _say(self, text: str) -> None:
        now = time.monotonic()
        if not self._text or not text:
            self._began = now
        self._text = text

    def _look(self) -> None:
        """Print long phases until the end; leave the process if a signal stays unanswered."""
        asked: _Asked | None = None
        self._wakes.settimeout(LOOK_S)
        while not self._over.is_set():
            try:
                numbers = [number for number in self._wakes.recv(16) if number in CODES]
            except TimeoutError:
                numbers = []
            now = time.monotonic()
            if numbers and asked is None:
                asked = _Asked(numbers[0], now, *_main_is_at())
            if asked is not None and now - asked.at > LEAVE_S:
                if _main_is_at() == (asked.frame, asked.instruction):
                    self._leave(CODES[signal.Signals(asked.number)])
                # Python went on, so the signal was answered; what follows may take its time
                asked = None
            since = max(self._began, self._told)
            if self._text and now - since >= (FIRST_S if self._told < self._began else EVERY_S):
                self._tell()

    def _tell(self) -> None:
        self._told = time.monotonic()
        if self._quiet:
            return
        seconds = self._told - self._began
        line = f"starting: {self._text}{f' ({seconds:.0f} s)' if seconds >= 1.0 else ''}"
        if not self._live:
            say(line, file=self._out)
            return
        self._erase()
        self._shows = True
        print(
            line[: (width_of(self._out) or len(line) + 1) - 1], end="", file=self._out, flush=True
        )

    def _erase(self) -> None:
        """Remove the line from the terminal."""
        if self._shows:
            print("\r\x1b[2K", end="", file=self._out, flush=True)
            self._shows = False

    def _leave(self, code: int) -> None:
        """End this process now: nothing of a run has begun that could be lost. Workers end with it,
        and see to theirs.
        """
        self._erase()
        print("interrupted", file=self._out, flush=True)
        if place := multiprocessing.folder():
            shutil.rmtree(place, ignore_errors=True)
        os._exit(code)
