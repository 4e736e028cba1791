"""Ctrl-C as a request: it is answered between two pieces of work, never in the middle of an import or a file."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Self


class Interrupt:
    """While entered, the first SIGINT is kept until ``check``; a second one raises KeyboardInterrupt where it falls."""

    def __init__(self) -> None:
        self.asked = False
        self._installed = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGINT)
            if self._before is not signal.SIG_IGN:  # a job in the background of a shell is not ours to interrupt
                signal.signal(signal.SIGINT, self._note)
                self._installed = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def check(self) -> None:
        """KeyboardInterrupt if it was asked for."""
        if self.asked:
            raise KeyboardInterrupt
