"""Keys at a terminal: they switch pages at once, end nothing, and leave the terminal as it was,
however the view ends.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise.console.keys import HIDE, SHOW, names

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0
# The first process of a session, as a shell is: it runs the view as a job, and goes on with it
# where a byte comes after a stop.
SHELL = """
import fcntl, os, signal, sys, termios
go, told = int(sys.argv[1]), int(sys.argv[2])
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):  # a command of nohup or "&" has them ignored
    signal.signal(number, signal.SIG_DFL)
job = os.fork()
if not job:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, *sys.argv[3:]])
while True:
    _, status = os.waitpid(job, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        os.write(told, b"%d\\n" % os.waitstatus_to_exitcode(status))
        break
    os.tcsetpgrp(0, os.getpid())
    os.write(told, b"stopped\\n")
    if os.read(go, 1) == b"f":  # else it goes on in the background
        os.tcsetpgrp(0, job)
    os.kill(job, signal.SIGCONT)
    if os.read(go, 1) == b"f":
        os.tcsetpgrp(0, job)
"""  # noqa: E501


class Watched:
    """The view in a terminal of 80 columns, as a job of something like a shell."""

    def __init__(self, on: str = "process", **streams: Any) -> None:
        self._terminal, inner = os.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.usual = self.mode()
        self._go, go = os.pipe()[::-1]
        self._told, told = os.pipe()
        words = [sys.executable, "-c", SHELL, str(go), str(told), "-m", "tests.cli.viewing", on]
        environ = {**os.environ, "TERM": "xterm", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        for name in ("CI", "NO_COLOR", "COLUMNS"):
            environ.pop(name, None)
        self._process = subprocess.Popen(
            words,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            cwd=ROOT,
            env=environ,
            pass_fds=(go, told),
            start_new_session=True,
            **streams,
        )
        for one in (inner, go, told):
            os.close(one)
        self.written = ""

    @property
    def text(self) -> str:
        """What was written, without colours."""
        return re.sub(r"\x1b\[[\d;]*m", "", self.written)

    def mode(self) -> list[Any]:
        return termios.tcgetattr(self._terminal)

    def reads_keys(self) -> bool:
        return not self.mode()[3] & (termios.ICANON | termios.ECHO)

    def press(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def until(self, found: Callable[[], Any], what: str) -> None:
        """Read what the terminal gets until it is so."""
        ends = time.monotonic() + WAIT_S
        while not found():
            assert time.monotonic() < ends, f"expected {what}, got:\n{self.text[-2000:]}"
            if select.select([self._terminal], [], [], 0.02)[0]:
                try:
                    self.written += os.read(self._terminal, 65536).decode(errors="replace")
                except OSError:  # nobody writes any more
                    time.sleep(0.02)

    def shows(self, *parts: str) -> None:
        """Wait for a new picture with all of it."""
        self.written = ""
        self.until(lambda: all(part in self.text for part in parts), f"a picture with {parts}")

    def told(self) -> str:
        """What the shell says next of its job, while the terminal is read."""
        self.until(lambda: select.select([self._told], [], [], 0.0)[0], "a word of the shell")
        return os.read(self._told, 64).decode().strip()

    def go_on(self, how: str) -> None:
        os.write(self._go, how.encode())

    @property
    def job(self) -> int:
        return os.tcgetpgrp(self._terminal)

    def close(self) -> None:
        for group in {self.job, self._process.pid} - {0}:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()
        for one in (self._terminal, self._go, self._told):
            os.close(one)


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.close()


def test_letters_and_arrows_have_names() -> None:
    assert [*names("1q\x1b[A\x1bOB\x1b[6~j")] == ["1", "q", "up", "down", "page down", "j"]
    assert [*names("\x1b")] == ["\x1b"] and [*names("")] == []
    assert [*names("\x1b[1;5A\x1b[3~2\x1b[24~")] == ["2"], "Ctrl-Up, Delete and F12 press no digit"


def test_keys_switch_pages_and_the_mode_is_put_back(watched: Watched) -> None:
    watched.shows("[1 run]", "actors blocked 40 %")
    assert watched.reads_keys()
    watched.press("2")
    watched.shows("[2 workers]", "actor 0")
    watched.press("q")
    watched.shows("q does not end a run", "actor 0")
    watched.press("1")
    watched.shows("[1 run]")
    watched.press("4")
    watched.until(lambda: "the end" in watched.text, "the end")
    assert watched.told() == "0" and watched.mode() == watched.usual
    assert SHOW.decode() in watched.text and HIDE.decode() not in watched.text


def test_an_error_puts_the_mode_back(watched: Watched) -> None:
    watched.shows("[1 run]")
    watched.press("3")
    assert watched.told() == "1" and watched.mode() == watched.usual and "planted" in watched.text


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP", "SIGQUIT"])
def test_a_signal_puts_the_mode_back(name: str, watched: Watched) -> None:
    watched.shows("[1 run]")
    os.kill(watched.job, getattr(signal, name))
    assert (
        watched.told() in (str(-getattr(signal, name)), "130") and watched.mode() == watched.usual
    )


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["f", "b"])
def test_a_suspended_view_leaves_the_terminal_to_the_shell_and_takes_it_again(
    how: str, watched: Watched
) -> None:
    """``fg`` at once, or ``bg`` first: then nothing is read and no mode is set until ``fg``."""
    watched.shows("[1 run]")
    watched.press("\x1a")
    assert watched.told() == "stopped" and watched.mode() == watched.usual
    watched.go_on(how)
    if how == "b":
        watched.press("2\n")
        watched.shows("[1 run]")
        watched.shows("[1 run]")
        assert watched.mode() == watched.usual and "[2 workers]" not in watched.text
        watched.go_on("f")
    watched.until(watched.reads_keys, "the mode for keys")
    watched.press("2")
    watched.shows("[2 workers]")


@pytest.mark.parametrize("on", ["serial"])
def test_a_debugger_has_the_keys_of_a_serial_run(on: str) -> None:
    made = Watched(on)
    try:
        made.shows("actor 0", "0 %  1 of 500k steps")
        assert made.mode() == made.usual and "[1 run]" not in made.text
    finally:
        made.close()
