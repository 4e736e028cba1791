"""The clock of a check: how much time is left, and a word to the supervisor before every call of
the env.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Tell = Callable[[str, object], None]  # (kind of event, JSON value)

REPORT_S = 0.5  # between two partial reports


class OutOfTime(Exception):
    """The share of the time that this probe has is used up."""


class Clock:
    """Time of a check that began now and may take ``seconds``. Without ``tell`` there is no
    listener.
    """

    def __init__(self, seconds: float, tell: Tell | None = None) -> None:
        self.began = time.monotonic()
        self.until = self.limit = self.began + seconds  # limit: when the probe under way is to end
        self.report: Callable[[], object] = dict
        self._since = self.began
        self._tell = tell
        self._report_at = self.began

    @property
    def left_s(self) -> float:
        return max(self.until - time.monotonic(), 0.0)

    @property
    def used(self) -> float:
        """The part of the share under way that is used, from 0."""
        return (time.monotonic() - self._since) / max(self.limit - self._since, 1e-9)

    def share(self, part: float) -> None:
        """Give the probe that begins this part of the time that is left."""
        self._since = time.monotonic()
        self.limit = self._since + part * self.left_s

    def probe(self, name: str, calls: int | None = None) -> None:
        """Report that a probe begins, and the number of its steps."""
        self.share(1.0)
        self.tell("probe", [name, calls])
        self.news()

    def call(self, where: str) -> None:
        """Report that the env is about to be called; OutOfTime if there is no time left for it."""
        now = time.monotonic()
        if now > self.limit:
            raise OutOfTime
        if self._tell is not None:
            if now >= self._report_at:
                self.news()
            self._tell("call", where)

    def news(self) -> None:
        """Send the report as it is now, for the case that nothing follows."""
        if self._tell is not None:
            self._report_at = time.monotonic() + REPORT_S
            self._tell("report", self.report())

    def tell(self, kind: str, value: object) -> None:
        if self._tell is not None:
            self._tell(kind, value)
