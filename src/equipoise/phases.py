"""Phases of a start and of an end: what a process is at, told to a listener in it. What takes long says why."""

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


_tell_of_end: Tell = _nobody


def ending(text: str) -> None:
    """Tell the listener what the end of a run is at from now on; "" once it is over."""
    _tell_of_end(text)


def listen_to_ends(tell: Tell) -> Tell:
    """Let ``tell`` hear what the ends of runs are at from now on -> the listener before."""
    global _tell_of_end
    before, _tell_of_end = _tell_of_end, tell
    return before
