"""How far an env check is: a line on stderr, written over at a terminal, else now and then, since
stdout has the report.
"""

from __future__ import annotations

import shutil
import sys
import time

from equipoise.console.place import is_live, printable, say
from equipoise.envs.check.supervise import Progress

REDRAW_S, LINE_S = 0.1, 5.0
LONG_S = 1.0  # a longer call is reported


class CheckLine:
    """Shows ``Progress``. ``clear`` takes the line away."""

    def __init__(self) -> None:
        self._live = is_live(sys.stderr)
        self._next = time.monotonic() + (0.0 if self._live else LINE_S)
        self._shown = False

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (REDRAW_S if self._live else LINE_S)
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{said(progress)[:width]}", end="", file=sys.stderr, flush=True)
            self._shown = True
        else:
            say(said(progress), file=sys.stderr)

    def warn(self, text: str) -> None:
        self.clear()
        say(f"warning: {printable(text)}", file=sys.stderr)

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = False


def said(progress: Progress) -> str:
    """For example "12 of 60 s  the first walk: step 412 of 1,500 (3 s in it), 2 findings"."""
    of = f" of {progress.steps:,}" if progress.steps and progress.where.startswith("step ") else ""
    long = (
        f" ({progress.call_s:.0f} s in it)" if progress.where and progress.call_s >= LONG_S else ""
    )
    found = (
        f", {progress.findings} finding{'s' * (progress.findings > 1)}" if progress.findings else ""
    )
    where = f": {progress.where}{of}{long}" if progress.where else ""
    return f"{progress.spent_s:.0f} of {progress.seconds:g} s  {progress.probe}{where}{found}"
