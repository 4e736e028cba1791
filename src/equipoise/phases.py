"""Phases of a start and of an end: the present phase of a process, reported to a listener in it.
Long phases report their reason.
"""

from __future__ import annotations

from collections.abc import Callable

Tell = Callable[[str], object]


class Said:
    """The present phase of one long operation of a process, for its listener; at first there is no
    listener.
    """

    def __init__(self) -> None:
        self._tell: Tell | None = None

    def say(self, text: str) -> None:
        """Report the present phase of this process to the listener; "" once it is over."""
        if self._tell is not None:
            self._tell(text)

    def listen(self, tell: Tell | None) -> Tell | None:
        """Let ``tell`` hear the phases of this process from now on -> the listener before."""
        before, self._tell = self._tell, tell
        return before


_start, _end = Said(), Said()
say, listen = _start.say, _start.listen
ending, listen_to_ends = _end.say, _end.listen
