"""The part that all runs of a process share: the answer to signals, and being closed when the
program ends.

Any number of runs may be under way, iterated in turn, in any thread, and ended in any order:

- SIGINT and SIGTERM have one handler, from the first run that begins in the main thread to the end
  of the last such run. Then whatever handled them before does so again, unless other code took them
  over meanwhile.
- The first signal is a request to every run that is under way, which each answers between two
  pieces of work: never in the middle of an import or a file. A signal that comes when all have been
  asked raises at once.
- Python calls one function at the program's end, which closes the runs that are still open, the
  newest first.
- The fork servers (``forkserver``) are shared by all runs and kept until the program ends, since a
  start takes seconds. The server of env workers ends earlier if measuring found that it is not
  needed.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Protocol, Self

Handler = Callable[[int, FrameType | None], object] | int | None  # of a signal
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Preempted(KeyboardInterrupt):
    """SIGTERM: the machine is about to be taken away."""


class Closes(Protocol):
    def close(self) -> None: ...


class ClosesAtExit(Protocol):
    def close_unused(self) -> None: ...


class Session:
    """The handlers and the open runs of this process."""

    def __init__(self) -> None:
        self._waiting: list[Interrupt] = []  # of the runs that are under way
        self._before: dict[int, Handler] = {}  # the handlers that were there, by signal
        self._open: list[weakref.ref[ClosesAtExit]] = []
        self._process = 0  # that the program's end was registered in

    def enter(self, interrupt: Interrupt) -> None:
        """A run begins."""
        self._waiting.append(interrupt)
        if interrupt.main and not self._before:
            for number in SIGNALS:
                before = signal.getsignal(number)
                # a job in the background of a shell is not ours to interrupt
                if before is not signal.SIG_IGN:
                    signal.signal(number, self._note)
                    self._before[number] = before

    def leave(self, interrupt: Interrupt) -> None:
        """A run is over, however it ended."""
        self._waiting.remove(interrupt)
        if not any(other.main for other in self._waiting) and _in_main_thread():
            self._restore()

    def _restore(self) -> None:
        for number, before in self._before.items():
            if signal.getsignal(number) == self._note:
                signal.signal(number, before)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Answer a signal; Python calls this in the main thread."""
        # the last run was ended by another thread
        if not any(waiting.main for waiting in self._waiting):
            self._restore()
            signal.raise_signal(number)
            return
        kind = Preempted if number == signal.SIGTERM else KeyboardInterrupt
        if all(waiting.asked or waiting.eager for waiting in self._waiting):
            raise kind
        for waiting in self._waiting:
            waiting.ask(kind)

    def close_at_exit(self, run: ClosesAtExit) -> None:
        """A program may end after a ``break``: its runs are closed while the interpreter is still
        whole.
        """
        if self._process != os.getpid():  # a copy of this process does not have its runs
            self._process, self._open = os.getpid(), []
            atexit.register(self._close_all, self._process)
        self._open = [*(one for one in self._open if one() is not None), weakref.ref(run)]

    def _close_all(self, process: int) -> None:
        if process != os.getpid():
            return
        failed: BaseException | None = None
        while self._open:
            if (run := self._open.pop()()) is not None:
                try:
                    run.close_unused()
                except BaseException as error:  # the others are still to be closed
                    failed = failed or error
        if failed is not None:
            raise failed


SESSION = Session()


class Interrupt:
    """While entered, the first SIGINT or SIGTERM is kept until ``check``; a second one raises where
    it falls.

    So does the first one if it is ``eager``: while a run starts, which may take minutes and has
    nothing to save yet.
    """

    def __init__(self, session: Session = SESSION) -> None:
        self._session = session
        self._asked: type[KeyboardInterrupt] | None = None
        self.eager = False
        # was it entered by the main thread, which alone may set handlers?
        self.main = False

    @property
    def asked(self) -> bool:
        return self._asked is not None

    def __enter__(self) -> Self:
        self.main = _in_main_thread()
        self._session.enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._session.leave(self)

    def ask(self, kind: type[KeyboardInterrupt]) -> None:
        """Keep the request; the first one counts."""
        self._asked = self._asked or kind

    def check(self) -> None:
        """KeyboardInterrupt (or Preempted, which is one) if it was asked for."""
        if self._asked is not None:
            raise self._asked


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
