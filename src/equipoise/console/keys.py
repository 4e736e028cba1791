"""Keys of a terminal, each reported at once while a run goes on, and the terminal as it was
afterwards.

The terminal usually gives lines and shows what is typed; meanwhile it gives single keys and shows
none. Ctrl-C and Ctrl-Z stay signals. The mode is put back at the end, however it comes: an
exception, Ctrl-C, SIGTERM, SIGHUP, SIGQUIT. It is also put back before this process is suspended,
and taken again when it goes on. In the background nothing is read and no mode is set, since the
terminal is then another job's. SIGKILL leaves it to the shell.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import IO, Any, Self

from equipoise.console.place import is_terminal

NAMES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
}
KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)  # a sequence of a terminal, or a letter
SHOW, HIDE = b"\x1b[?25h", b"\x1b[?25l"  # the cursor
# the signals whose default Python leaves to the system
SIGNALS = (signal.SIGTSTP, signal.SIGHUP, signal.SIGQUIT)
BACKGROUND_S = 0.2  # between two looks at a terminal that is another job's


def can_read(out: IO[str]) -> bool:
    """Are stdin and ``out`` a terminal's, and may this thread set handlers of signals?"""
    here = threading.current_thread() is threading.main_thread()
    return (
        here
        and is_terminal(sys.stdin)
        and is_terminal(out)
        and _has_descriptor(sys.stdin)
        and _has_descriptor(out)
    )


def _has_descriptor(stream: IO[str]) -> bool:
    try:
        return stream.fileno() >= 0
    except (OSError, ValueError, AttributeError):  # a stand-in
        return False


def names(text: str) -> Iterator[str]:
    """The keys in what a terminal sent: a letter each, or a name of ``NAMES``; other sequences are
    no key.
    """
    for code in KEY.findall(text):
        if len(code) == 1 or code in NAMES:
            yield NAMES.get(code, code)


class Keys:
    """A context manager in the main thread; a thread of its own calls ``pressed`` with the keys."""

    def __init__(
        self, pressed: Callable[[Sequence[str]], None], out: IO[str], height: Callable[[], int]
    ) -> None:
        """``height``: lines of the picture on ``out``, below which the shell writes when this
        process is suspended.
        """
        self._pressed, self._height = pressed, height
        self._in, self._out = sys.stdin.fileno(), out.fileno()
        self._usual: list[Any] | None = None  # the mode of the terminal before, if it was taken
        self._before: dict[int, Any] = {}  # handlers
        self._over, self._end = os.pipe()
        self._thread = threading.Thread(target=self._listen, daemon=True, name="keys")

    def __enter__(self) -> Self:
        for number in SIGNALS:
            # else it is ignored, as by nohup, or somebody else's
            if signal.getsignal(number) is signal.SIG_DFL:
                self._before[number] = signal.signal(number, self._default)
        self.tend()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._put_back()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.write(self._end, b".")
        self._thread.join()
        os.close(self._over)
        os.close(self._end)

    def tend(self) -> None:
        """Take the mode if this process is in the foreground and the terminal has another one, as
        after ``fg``.
        """
        if self._foreground():
            mode = termios.tcgetattr(self._in)
            if mode[3] & termios.ICANON:
                self._usual = mode
                tty.setcbreak(self._in, termios.TCSANOW)

    def _put_back(self) -> None:
        # setting a mode in the background suspends a process
        if self._usual is not None and self._foreground():
            termios.tcsetattr(self._in, termios.TCSANOW, self._usual)

    def _foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self._in) == os.getpgrp()
        except OSError:  # the terminal has gone
            return False

    def _default(self, number: int, frame: FrameType | None) -> None:
        """Do what the signal does by default, with the terminal as it was. Python's streams may be
        in the middle of a write.
        """
        self._put_back()
        os.write(self._out, SHOW + b"\n")
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)  # the process ends here, or goes on after SIGCONT
        signal.signal(number, self._default)
        self.tend()
        # the next picture begins this number of lines further up
        os.write(self._out, HIDE + b"\n" * max(self._height() - 1, 0))

    def _listen(self) -> None:
        # reading in the background is then an error, no suspension
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN})
        while True:
            ready, _, _ = select.select([self._in, self._over], [], [])
            if self._over in ready:
                return
            try:
                text = os.read(self._in, 64).decode(errors="ignore")
            except OSError:
                text = ""
            if keys := list(names(text)):
                self._pressed(keys)
            if not text and select.select([self._over], [], [], BACKGROUND_S)[0]:
                return
