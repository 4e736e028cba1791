"""Decisions, outcomes and shadow answers in an SQLite file: written by one thread, so that no
answer waits for the disk.

Records that cannot be written (a full disk, a lock of another process) wait, with an alarm, until
the disk takes them. The queue is bounded: records that find it full are lost and counted, and the
server goes on. An outcome is acknowledged when it is in the file that is then at the path. A file
that was moved or removed has a successor, which also gets records that may be lost with the old
one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from equipoise import frames

log = logging.getLogger("equipoise.serving")
QUEUE = 20_000  # records that may wait for the disk
GATHER_S = 0.05  # decisions are written together, this often
LARGEST = 1 << 30  # bytes of an observation
RETRY_S = 0.5  # after a write that failed
BUSY_S = 2.0  # that a write waits for another process to end its own, before it is tried again
CLOSE_S = 8.0  # at the end, for what waits
AT_ONCE = 5_000  # groups of a transaction
MOVES = 3  # of the file in a row, before that is an error
SAME = 4  # numbers of ``_state`` that no write changes
BYTES = 4096  # of an observation that count as one record more
TABLES = """
CREATE TABLE IF NOT EXISTS decisions (id TEXT PRIMARY KEY, unit TEXT, session TEXT, step INTEGER, policy TEXT, version TEXT,
    deterministic INTEGER, propensity REAL, kind TEXT, fallback TEXT, time REAL, action TEXT, observation BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outcomes (id TEXT, reward REAL, data TEXT, time REAL);
CREATE INDEX IF NOT EXISTS outcomes_of_decisions ON outcomes (id);
CREATE TABLE IF NOT EXISTS shadows (id TEXT, version TEXT, propensity REAL, time REAL, action TEXT);
CREATE TABLE IF NOT EXISTS answers (id TEXT, model TEXT, version TEXT, prompt_tokens INTEGER, tokens INTEGER, whole INTEGER, time REAL);
"""  # noqa: E501
INSERTS = {
    "decisions": "INSERT OR IGNORE INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "outcomes": "INSERT INTO outcomes VALUES (?, ?, ?, ?)",
    "answers": "INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)",
    "shadows": "INSERT INTO shadows VALUES (?, ?, ?, ?, ?)",
}
# table, records, their size in records, and the callback that learns whether they are written
Group = tuple[str, tuple[tuple[object, ...], ...], int, Callable[[bool], None] | None]


class Store:
    """The file and its writer thread. ``put`` never waits; ``alarm`` is the present problem, or
    None.
    """

    def __init__(self, path: Path | None, *, observations: bool = True, queue: int = QUEUE) -> None:
        """``path`` None: nothing is kept, and outcomes are refused. ``observations``: keep them
        with their decisions.
        """
        self.path, self._observations, self._most = path, observations, queue
        self.alarm: str | None = None
        self.lost = self.written = 0
        self._waiting: deque[Group] = deque()
        self._taken: list[Group] = []  # by the writer, which keeps them until they are in the file
        # sizes: callers of ``put`` count the first, the writer counts the second
        self._came = self._went = 0
        self._wake, self._lock, self._ends = threading.Event(), threading.Lock(), math.inf
        self._claimed = self._dropped = frozenset[Callable[[bool], None]]()
        self._thread: threading.Thread | None = None
        if path is not None:
            self._connect()[0].close()  # so that a wrong path is an error of the start
            self._thread = threading.Thread(target=self._run, name="decisions", daemon=True)
            self._thread.start()

    def put(
        self, table: str, *rows: tuple[Any, ...], written: Callable[[bool], None] | None = None
    ) -> bool:
        """Queue records of one table; False if all of them are lost at once.

        The writer thread calls ``written``, and hurries.
        """
        if self._thread is None:
            return False
        size = len(rows)
        if table == "decisions" and self._observations:
            for x in rows[0][-1].values():
                size += x.nbytes // BYTES
        if self._came - self._went + size > self._most:
            self.lost += len(rows)
            self.alarm = (
                self.alarm
                or f"{self.path}: {self._most:,} records wait for the disk, and more are lost"
            )
            return False
        self._came += size
        self._waiting.append((table, rows, size, written))
        if written is not None:
            self._wake.set()
        return True

    def drop(self, written: Callable[[bool], None]) -> bool:
        """Take back the records that ``put`` queued with this callback; False if the writer has
        them, which then calls it.
        """
        with self._lock:
            if written in self._claimed:
                return False
            self._dropped |= {written}
            return True

    @property
    def waiting(self) -> int:
        """Records that wait for the disk; one with a large observation counts as several."""
        return self._came - self._went

    def close(self) -> None:
        """Write all that waits, and end; records that cannot be written within ``CLOSE_S`` are
        lost, later ones refused.
        """
        thread, self._thread = self._thread, None  # ``put`` asks whether there is a writer
        if thread is not None:
            self._ends = time.monotonic() + CLOSE_S
            self._wake.set()
            thread.join()

    def _connect(self) -> tuple[sqlite3.Connection, tuple[int, ...]]:
        """Open the file, or make it with mode 0600 -> (connection, ``_state``)."""
        assert self.path is not None
        try:
            os.close(
                os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
            )
            file = sqlite3.connect(str(self.path), isolation_level=None, timeout=BUSY_S)
            try:
                file.execute("PRAGMA journal_mode=WAL")
                file.execute("PRAGMA synchronous=NORMAL")
                file.execute("PRAGMA wal_autocheckpoint=0")
                file.executescript(TABLES)
                file.execute("PRAGMA wal_checkpoint(PASSIVE)")
                return file, self._state()
            except BaseException:
                file.close()
                raise
        except (sqlite3.Error, OSError) as error:
            raise OSError(
                f"{self.path}: expected a file for decisions that can be written, got {error}"
            ) from error

    def _state(self) -> tuple[int, ...]:
        """Return a mark that changes if another process moves, replaces or rewrites the file or its
        neighbours; () without a file, and for an empty one.

        The mark has the file's device and inode, the inodes of log and index, the file's size and
        time of change. The file is not opened: to close it again would drop the locks that SQLite
        has on it in this process.
        """
        try:
            found, log, index = (os.stat(f"{self.path}{end}") for end in ("", "-wal", "-shm"))
        except FileNotFoundError:
            return ()
        same = (found.st_dev, found.st_ino, log.st_ino, index.st_ino)
        return (*same, found.st_size, found.st_mtime_ns) if found.st_size else ()

    def _run(self) -> None:
        file: sqlite3.Connection | None = None
        state: tuple[int, ...] = ()
        moves = 0  # in a row
        while self.waiting or self._ends == math.inf:
            if not self._taken:
                self._wake.wait(GATHER_S)
                self._wake.clear()
            self._take()
            if not self._taken:
                continue
            try:
                if file is not None and state != self._state():
                    self._leave(file)
                    file = None
                if file is None:
                    file, state = self._connect()
                self._write(file, self._taken)
                written, state = state, self._state()
                # it was moved, removed or overwritten meanwhile
                if not state or written[:SAME] != state[:SAME]:
                    moves += 1
                    if moves > MOVES:
                        raise OSError(
                            "expected a file that stays where it is, got one that was moved or "
                            "removed again and again"
                        )
                    self._leave(file)
                    file = None
                    continue  # these also go to its successor
            except (sqlite3.Error, OSError) as error:
                busy, moves = "locked" in str(error), 0
                if file is not None and not busy:
                    self._leave(file)
                    file = None
                self._failed(error, busy)
                if self._taken:
                    self._wake.wait(min(RETRY_S, max(0.0, self._ends - time.monotonic())))
                    self._wake.clear()
                continue
            # values that SQLite cannot take
            except (ValueError, TypeError, OverflowError) as error:
                self._failed(error, False, everything=True)
                continue
            self.written += sum(len(rows) for _, rows, _, _ in self._taken)
            self.alarm, moves = None, 0
            self._settle(self._taken, True)
            self._taken = []
        if file is not None:
            self._leave(file)

    def _take(self) -> None:
        """Take the groups that wait and were not dropped; the writer has them from now on."""
        while self._waiting and len(self._taken) < AT_ONCE:
            self._taken.append(self._waiting.popleft())
        with self._lock:
            gone = [group for group in self._taken if group[3] in self._dropped]
            self._taken = [group for group in self._taken if group[3] not in self._dropped]
            self._dropped -= {group[3] for group in gone if group[3] is not None}
            self._claimed = frozenset(group[3] for group in self._taken if group[3] is not None)
        self._went += sum(size for _, _, size, _ in gone)

    def _settle(self, groups: list[Group], fine: bool) -> None:
        """Count groups that wait no longer, and call their callers back."""
        with self._lock:
            self._claimed = frozenset()
        self._went += sum(size for _, _, size, _ in groups)
        if not fine:
            self.lost += sum(len(rows) for _, rows, _, _ in groups)
        for _, _, _, written in groups:
            if written is not None:
                written(fine)

    def _write(self, file: sqlite3.Connection, groups: list[Group]) -> None:
        """Write one transaction into the log and from there into the file, which may be moved away
        from its log.
        """
        file.execute("BEGIN IMMEDIATE")
        try:
            for table, insert in INSERTS.items():
                rows = [
                    self._row(table, values)
                    for name, all_values, _, _ in groups
                    if name == table
                    for values in all_values
                ]
                if rows:
                    file.executemany(insert, rows)
            file.execute("COMMIT")
        except BaseException:
            if file.in_transaction:
                file.execute("ROLLBACK")
            raise
        with contextlib.suppress(sqlite3.Error):  # a reader is active: the next one will do
            file.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _leave(self, file: sqlite3.Connection) -> None:
        """Close a file; the rest of its log goes into it, also if it was moved."""
        with contextlib.suppress(sqlite3.Error):
            file.execute("PRAGMA busy_timeout = 100")
            file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with contextlib.suppress(sqlite3.Error):
            file.close()

    def _row(self, table: str, values: tuple[Any, ...]) -> tuple[object, ...]:
        """The values as SQLite takes them: an action as JSON, an observation (a tree of arrays) as
        the body of a frame.
        """
        if table == "decisions":
            *rest, action, rows = values
            observation = (
                frames.encode(rows, LARGEST)[frames.HEAD.size :] if self._observations else None
            )
            return (*rest, json.dumps(action), observation)
        return (*values[:-1], json.dumps(values[-1])) if table == "shadows" else values

    def _failed(self, error: Exception, busy: bool, everything: bool = False) -> None:
        """Keep the taken groups until the disk takes them. Outcomes are given up, as their callers
        wait for an answer.

        ``busy``: another process writes, which ends some time, so outcomes wait too.
        ``everything``: the values are at fault.
        """
        if self.alarm is None:
            log.error(
                "decisions cannot be written", extra={"file": str(self.path), "reason": str(error)}
            )
        over = everything or time.monotonic() >= self._ends
        fate = (
            "records are lost"
            if over
            else f"records wait, and beyond {self._most:,} records are lost"
        )
        self.alarm = f"{self.path}: {fate}: {error}"
        given_up = [group for group in self._taken if over or (group[3] is not None and not busy)]
        self._taken = [] if over else [group for group in self._taken if busy or group[3] is None]
        self._settle(given_up, False)
