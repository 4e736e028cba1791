"""The parts of every worker's work as they come: the last ones in a file for ``equipoise trace``,
or all for a profiler.

A worker of a run with ``placement.trace_s`` has a ``TracedClock``, which also writes each part into
a ring: a file of the run directory that is mapped into memory, one a worker. So it costs nothing if
tracing is off, and the last seconds of a run that hangs or is killed are also there. Nothing here
loads torch.

A file: one page with what the worker is, in JSON, and zeros; then doubles: how many parts were
written, and for each place of the ring the number of the part, when it began and when it ended
(``time.perf_counter``, one clock for all processes).
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from equipoise.clock import Clock

FOLDER = "traces"
PAGE = 4096
# parts in a second that a ring has room for: three a tick of 150 us. Faster ticks leave fewer
# seconds
PER_SECOND = 20_000
LARGEST = 1 << 20  # parts of a ring: 24 MiB
NEAR = 8  # the oldest parts of a full ring may be overwritten while they are read


class TracedClock(Clock):
    """A clock that also remembers when the last parts began and ended."""

    __slots__ = ("_began", "_ring", "_size")

    def __init__(
        self,
        parts: Sequence[str],
        seconds: Any,
        counts: Any,
        *,
        file: Path,
        title: str,
        kind: str,
        for_s: float,
    ) -> None:
        """``for_s``: how many seconds the ring has room for. A successor goes on in the ring of the
        one before it.
        """
        super().__init__(parts, seconds, counts)
        self._size = min(max(round(for_s * PER_SECOND), NEAR + 1), LARGEST)
        self._ring: Any = _mapped(
            file, {"title": title, "kind": kind, "parts": list(parts), "size": self._size}
        )
        self._began = self._at

    def begin(self, then: str = "") -> None:
        self._at = self._began = perf_counter()

    def lap(self, part: str, then: str = "") -> None:
        super().lap(part)
        self._note(part, self._began, self._at)
        self._began = self._at

    def add(self, part: str, seconds: float) -> None:
        super().add(part, seconds)
        now = perf_counter()
        self._note(part, now - seconds, now)

    def _note(self, part: str, began: float, ended: float) -> None:
        ring, count = self._ring, self._ring[0]
        at = 1 + int(count) % self._size * 3
        ring[at], ring[at + 1], ring[at + 2] = self.parts[part], began, ended
        ring[0] = count + 1.0


class NvtxClock(Clock):
    """A clock that also shows the parts to NVIDIA's profilers, by names such as "learner/loss".

    NVTX names a range where it begins and a clock names a part where it ends. So a part is a range
    if it was announced (``then``), and elsewhere a mark at its end.
    """

    __slots__ = ("_nvtx", "_open", "_range", "_title")

    def __init__(
        self, parts: Sequence[str], seconds: Any, counts: Any, *, nvtx: Any, title: str
    ) -> None:
        """``nvtx``: the module ``torch.cuda.nvtx``."""
        super().__init__(parts, seconds, counts)
        self._nvtx, self._title, self._open, self._range = nvtx, title, "", 0

    def begin(self, then: str = "") -> None:
        self._turn(then)
        super().begin()

    def lap(self, part: str, then: str = "") -> None:
        super().lap(part)
        if self._open != part:
            self._nvtx.mark(f"{self._title}/{part}")
        self._turn(then)

    def add(self, part: str, seconds: float) -> None:
        super().add(part, seconds)
        self._nvtx.mark(f"{self._title}/{part}")

    def _turn(self, then: str) -> None:
        """End the range that is open, and begin that of the part that comes next. Ranges of workers
        of one thread may cross.
        """
        if self._open:
            self._nvtx.range_end(self._range)
        self._open = then
        if then:
            self._range = self._nvtx.range_start(f"{self._title}/{then}")


def _mapped(file: Path, said: dict[str, Any]) -> Any:
    """The doubles of a ring's file, which is made unless the same worker has a file."""
    head = json.dumps(said).encode().ljust(PAGE, b"\0")
    size = PAGE + 8 * (1 + 3 * said["size"])
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("r+b" if file.exists() else "w+b") as opened:
        if opened.read(PAGE) != head:
            opened.seek(0)
            opened.write(head)
            opened.truncate(PAGE)
        os.ftruncate(opened.fileno(), size)
        # now: later a write into the map would die of a full disk
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(opened.fileno(), 0, size)
        return memoryview(mmap.mmap(opened.fileno(), size))[PAGE:].cast("d")


def ring_of(folder: Path, title: str) -> Path:
    """The file of a worker's ring."""
    return folder / f"{title.replace(' ', '_')}.ring"


@dataclass(frozen=True, slots=True)
class Trace:
    """The last parts of one worker: ``rows`` [n, 3] float64 of number, begin and end, in the order
    in which they ended.
    """

    title: str
    kind: str
    parts: tuple[str, ...]
    rows: Any


def read(folder: Path) -> list[Trace]:
    """The traces in a folder, worker by worker; ValueError for a file that holds none."""
    return [_read(file) for file in sorted(folder.glob("*.ring"))]


def _read(file: Path) -> Trace:
    data = file.read_bytes()
    try:
        said = json.loads(data[:PAGE].rstrip(b"\0"))
        title, kind, parts, size = (
            str(said["title"]),
            str(said["kind"]),
            tuple(map(str, said["parts"])),
            int(said["size"]),
        )
        numbers = np.frombuffer(data, np.float64, 1 + 3 * size, PAGE)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{file}: expected the ring of a worker's last parts, got another file"
        ) from error
    count, rows = int(numbers[0]), numbers[1:].reshape(size, 3)
    if count > size:
        rows = np.roll(rows, -(count % size), axis=0)[NEAR:]
    else:
        rows = rows[:count]
    fine = (rows[:, 0] >= 0) & (rows[:, 0] < len(parts)) & (rows[:, 2] >= rows[:, 1])
    return Trace(title, kind, parts, rows[fine])


def chrome(traces: Iterable[Trace], seconds: float) -> dict[str, Any]:
    """The last seconds of these workers in the JSON that Perfetto and chrome://tracing read: a line
    for each worker.

    The time between two parts is a wait, or work that no part is marked of.
    """
    given = [one for one in traces if len(one.rows)]
    end = max((float(one.rows[:, 2].max()) for one in given), default=0.0)
    since = end - seconds
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "equipoise"}}
    ]
    for line, one in enumerate(given, 1):
        events.append(
            {"name": "thread_name", "ph": "M", "pid": 1, "tid": line, "args": {"name": one.title}}
        )
        rows = one.rows[one.rows[:, 2] > since]
        for number, began, ended in sorted(rows.tolist(), key=lambda row: (row[1], -row[2])):
            events.append(
                {
                    "name": one.parts[int(number)],
                    "cat": one.kind,
                    "ph": "X",
                    "pid": 1,
                    "tid": line,
                    "ts": round((began - since) * 1e6, 3),
                    "dur": round((ended - began) * 1e6, 3),
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
