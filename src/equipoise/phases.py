"""Phases of a start: what a process is at, told to a listener in it. A start that takes long says why."""

from __future__ import annotations

from collections.abc import Callable

Tell = Callable[[str], object]


def _nobody(text: str) -> None: ...


_tell: Tell = _nobody


def say(text: str) -> None:
    """Tell the listener what this process does from now on; "" once it does its proper work."""
    _tell(text)


def listen(tell: Tell) -> Tell:
    """Let ``tell`` hear what this process says from now on -> the listener before."""
    global _tell
    before, _tell = _tell, tell
    return before
