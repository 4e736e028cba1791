"""Phases of a start and of an end: what a process is at, told to a listener in it. What takes long
says why.
"""

from __future__ import annotations

from collections.abc import Callable

Tell = Callable[[str], object]


class Said:
    """What one process says of one thing that takes long, to the one who listens; nobody does at
    first.
    """

    def __init__(self) -> None:
        self._tell: Tell | None = None

    def say(self, text: str) -> None:
        """Tell the listener what this process does from now on; "" once that is over."""
        if self._tell is not None:
            self._tell(text)

    def listen(self, tell: Tell | None) -> Tell | None:
        """Let ``tell`` hear what this process says from now on -> the listener before."""
        before, self._tell = self._tell, tell
        return before


_start, _end = Said(), Said()
say, listen = _start.say, _start.listen
ending, listen_to_ends = _end.say, _end.listen
