"""When a worker hangs.

| what the process has done since its last tick | it hangs after |
|---|---|
| nothing: it slept, waited for a device or was stopped | ``deadline_s`` of such time |
| computed, in any of its threads | ``ENDLESS`` times ``deadline_s`` of such time |
| waited for a core that other processes had | never |

Linux's scheduler statistics distinguish the three. If there are none (macOS, some containers) all
time since the last tick counts as the first row.
"""

from __future__ import annotations

import contextlib
import os

# a tick may compute for this number of deadlines: an import, a long step of an env; an endless loop
# does not end then
ENDLESS = 5.0

# by thread: nanoseconds on a core, and nanoseconds runnable without one
Usage = dict[str, tuple[int, int]]


def usage(pid: int) -> Usage | None:
    """The time of each thread of a process so far; None if the kernel does not report it."""
    found: Usage = {}
    with contextlib.suppress(OSError):  # no /proc, or the process has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            # it may have ended
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file,
            ):
                computed, waited = file.read().split()[:2]
                found[thread] = int(computed), int(waited)
    return found or None


class Watch:
    """Watches one process: adds up what it does between its ticks."""

    def __init__(self, pid: int, now: float) -> None:
        self._pid, self._at, self._ticked = pid, now, now
        self._usage: Usage = {}
        self._idle_s = self._computed_s = 0.0  # since the last tick

    def look(self, now: float, ticked: float, deadline_s: float) -> str:
        """The activity that took the worker too long, or "".

        ``ticked``: when the last tick ended; a time to come if the worker was given leave until
        then.
        """
        if ticked != self._ticked:
            self._ticked, self._idle_s, self._computed_s = ticked, 0.0, 0.0
        passed, self._at = max(now - max(self._at, ticked), 0.0), now
        spent = usage(self._pid)
        if spent is not None:
            before = [self._usage.get(thread, (0, 0)) for thread in spent]
            computed, waited = (
                1e-9 * sum(new[i] - old[i] for new, old in zip(spent.values(), before, strict=True))
                for i in (0, 1)
            )
            self._usage = spent
            computed = min(computed, passed)
            self._computed_s += computed
            passed -= computed + min(waited, passed - computed)
        self._idle_s += passed
        if self._idle_s > deadline_s:
            return f"did nothing for {self._idle_s:.0f} s"
        if self._computed_s > ENDLESS * deadline_s:
            return f"computed for {self._computed_s:.0f} s without an end of its tick"
        return ""
