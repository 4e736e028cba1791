"""The end of a command's run: a line for each phase that takes long, so that Ctrl-C is seen to have
been heard.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol, Self

from equipoise import phases

# until a phase has a line, and between two lines of a phase
FIRST_S, EVERY_S = 0.6, 4.0


class Shows(Protocol):
    def ending(self, text: str) -> None: ...


class Ending:
    """A context manager around a run whose end ``view`` shows; a thread begins with the first phase
    of an end.
    """

    def __init__(self, view: Shows) -> None:
        self._view = view
        self._text, self._began = "", 0.0
        self._changed, self._over = threading.Condition(), False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._before = phases.listen_to_ends(self._say)
        return self

    def __exit__(self, *_: object) -> None:
        phases.listen_to_ends(self._before)
        with self._changed:
            self._over = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _say(self, text: str) -> None:
        with self._changed:
            self._text, self._began = text, time.monotonic()
            self._changed.notify()
        if text and self._thread is None:
            self._thread = threading.Thread(target=self._tell, daemon=True, name="ending")
            self._thread.start()

    def _tell(self) -> None:
        with self._changed:
            told = 0.0  # when the phase under way last had a line
            while not self._over:
                due = max(self._began + FIRST_S, told + EVERY_S if told > self._began else 0.0)
                now = time.monotonic()
                if self._text and now >= due:
                    told, seconds = now, now - self._began
                    self._view.ending(
                        f"{self._text}{f' ({seconds:.0f} s)' if seconds >= 1.0 else ''}"
                    )
                else:
                    self._changed.wait(due - now if self._text else None)
