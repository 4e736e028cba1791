"""The log of a worker or a trial: the output of its process, its env and their C libraries, in a
file of bounded size.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

LARGEST = 4 << 20  # bytes of a log; as many again of what stood in it before
SUFFIX, BEFORE = ".log", ".log.1"
STDOUT, STDERR = 1, 2
# bytes that the driver reads at once; lines of a worker's last words
TAIL, TAIL_LINES = 1 << 16, 20
LONGEST = 500  # characters of the last line that are kept


def log_of(directory: str, title: str) -> Path:
    """The log of the worker called ``title`` in a directory of logs."""
    return Path(directory) / f"{title.replace(' ', '-')}{SUFFIX}"


class Log:
    """Turns what this process prints into its log, from ``begin`` on. Programs that an env starts
    also print there.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def begin(self) -> None:
        """Send stdout and stderr, including the output of C libraries, to the end of the file;
        OSError if it cannot be opened.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        fd = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        for standard in (STDOUT, STDERR):
            os.dup2(fd, standard)
        os.close(fd)
        with contextlib.suppress(AttributeError):  # a test's stand-in for stdout
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a worker ends without a flush

    def keep_small(self) -> None:
        """Bound the size of this process's log."""
        _shorten(STDOUT, self.file)


def keep_small(file: Path) -> None:
    """Move the end of a log that has grown too large to a second file.

    The file is emptied and not replaced, so that programs which have it open write on in it; lines
    that are printed in that moment are lost.
    """
    if _size(file) <= LARGEST:
        return
    with contextlib.suppress(OSError):  # it was removed
        opened = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        try:
            _shorten(opened, file)
        finally:
            os.close(opened)


def _shorten(opened: int, file: Path) -> None:
    if (size := os.fstat(opened).st_size) <= LARGEST:
        return
    with (
        contextlib.suppress(OSError),  # a full disk costs the older lines
        file.with_suffix(BEFORE).open("wb", buffering=0) as before,
    ):
        before.write(os.pread(opened, LARGEST, size - LARGEST))
        before.write(os.pread(opened, LARGEST, size))  # lines that came in the meantime
    os.ftruncate(opened, 0)


class Logs:
    """The logs of all workers as the driver reads them: how many lines there were, and the last
    one.
    """

    def __init__(self, directory: str | None) -> None:
        """``directory``: None if workers print where the driver does."""
        self._directory = directory
        # by title: bytes of the log so far, lines, the last one
        self._read: dict[str, tuple[int, int, str]] = {}

    def file(self, title: str) -> Path:
        return log_of(self._directory or "", title)

    def size(self, title: str) -> int:
        """Bytes of a worker's log; from here on ``printed`` counts its lines, if it has not begun
        yet.
        """
        size = _size(self.file(title)) if self._directory is not None else 0
        self._read.setdefault(title, (size, 0, ""))
        return size

    def tail(self, title: str, begin: int) -> str:
        """The last lines of a worker's log, from byte ``begin`` on; "" if there are none."""
        if self._directory is None or (size := _size(self.file(title))) <= begin:
            return ""
        lines = _text(self.file(title), max(begin, size - TAIL), size).splitlines()
        return "\n".join(lines[-TAIL_LINES:]).strip()

    def printed(self) -> dict[str, tuple[int, str]]:
        """(lines, the last one) of each worker that has printed. If many came at once their number
        is an estimate.
        """
        for title, (seen, lines, last) in list(self._read.items()):
            size = _size(self.file(title)) if self._directory is not None else 0
            if size == seen:
                continue
            begin = 0 if size < seen else seen  # it was emptied
            new = _text(self.file(title), max(begin, size - TAIL), size)
            count, length = new.count("\n"), len(new.encode()) or 1
            if size - begin > TAIL:
                count = round(count * (size - begin) / length)
            said = [line for line in new.splitlines() if line.strip()]
            self._read[title] = (size, lines + count, said[-1].strip()[:LONGEST] if said else last)
        return {title: (lines, last) for title, (_, lines, last) in self._read.items() if lines}


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # nothing was printed yet
        return 0


def _text(file: Path, begin: int, end: int) -> str:
    try:
        with file.open("rb") as opened:
            opened.seek(begin)
            return opened.read(end - begin).decode(errors="replace")
    except OSError:
        return ""
