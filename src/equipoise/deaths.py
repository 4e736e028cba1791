"""Deaths of workers and their meaning for a successor.

| the worker | the run is given up at |
|---|---|
| raised, exited, hung, or had a fault of its own (SIGSEGV, ...) | its third death in a row of one cause, without progress |
| was killed by a signal from outside (``OUTSIDE``) | such a death, once nothing was learned for ``give_up_s`` |

A cause outside (the kernel short of memory, a cluster, a person) may leave the next process alone.
"""  # noqa: E501

from __future__ import annotations

import os
import platform
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MOST_FAILURES = 3  # in a row, of one cause and without progress
BACKOFF_S, LONGEST_BACKOFF_S = 0.1, 5.0
OUTSIDE = frozenset((signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT))


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker ended, in words that follow its name."""

    how: str
    cause: str  # the same for the same failure, without numbers that vary
    outside: bool = False

    @classmethod
    def of(cls, exitcode: int) -> Death:
        if exitcode >= 0:
            return cls(how := f"exited with code {exitcode}", how)
        name = next((one.name for one in signal.Signals if one == -exitcode), f"signal {-exitcode}")
        return cls(how := f"was killed by {name}", how, -exitcode in OUTSIDE)


@dataclass(slots=True)
class Streak:
    """Deaths in a row of one cause, without progress in between."""

    cause: str = ""
    count: int = 0
    since: float = 0.0  # time.monotonic() of the first

    def add(self, death: Death, *, progress: bool) -> None:
        if progress or death.cause != self.cause:
            self.cause, self.count, self.since = death.cause, 0, time.monotonic()
        self.count += 1

    @property
    def backoff_s(self) -> float:
        """How long the successor is to wait."""
        return min(BACKOFF_S * 2.0 ** min(self.count - 1, 16), LONGEST_BACKOFF_S)

    def hopeless(self, death: Death, *, learned_at: float, give_up_s: float) -> str:
        """Why the run is to be given up after this death, or "". ``learned_at``: when the newest
        version was made.
        """
        if self.count < MOST_FAILURES:
            return ""
        if not death.outside:
            return f"{self.count} times in a row"
        nothing_s = time.monotonic() - max(self.since, learned_at)
        return (
            f"{self.count} times in a row, and nothing was learned for {nothing_s:.0f} s"
            if nothing_s > give_up_s
            else ""
        )


@cache
def machine() -> str:
    """The machine on which process ids mean the same: its name, boot and process namespace."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)
