"""Ctrl-C and SIGTERM as requests: answered between two pieces of work, never in the middle of an import or a file."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class Preempted(KeyboardInterrupt):
    """SIGTERM: the machine is about to be taken away."""


class Interrupt:
    """While entered, the first SIGINT or SIGTERM is kept until ``check``; a second one raises where it falls."""

    def __init__(self) -> None:
        self._asked: type[KeyboardInterrupt] | None = None
        self._before: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        return self._asked is not None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.getsignal(number)
                if before is not signal.SIG_IGN:  # a job in the background of a shell is not ours to interrupt
                    signal.signal(number, self._note)
                    self._before[number] = before
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        kind = Preempted if number == signal.SIGTERM else KeyboardInterrupt
        if self.asked:
            raise kind
        self._asked = kind

    def check(self) -> None:
        """KeyboardInterrupt (or Preempted, which is one) if it was asked for."""
        if self._asked is not None:
            raise self._asked
