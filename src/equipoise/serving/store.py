"""Decisions, outcomes and shadow answers in an SQLite file: written by one thread, so that no answer waits for the disk.

The queue is bounded. What cannot be written (a full disk, a queue that is full) is lost, counted, and an alarm for as long as
it lasts; the server goes on. An outcome is acknowledged when it is in the file.
"""

from __future__ import annotations

import json
import logging
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
TABLES = """
CREATE TABLE IF NOT EXISTS decisions (id TEXT PRIMARY KEY, unit TEXT, session TEXT, step INTEGER, policy TEXT, version TEXT,
    deterministic INTEGER, propensity REAL, kind TEXT, fallback TEXT, time REAL, action TEXT, observation BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outcomes (id TEXT, reward REAL, data TEXT, time REAL);
CREATE INDEX IF NOT EXISTS outcomes_of_decisions ON outcomes (id);
CREATE TABLE IF NOT EXISTS shadows (id TEXT, version TEXT, propensity REAL, time REAL, action TEXT);
"""
INSERTS = {
    "decisions": "INSERT INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "outcomes": "INSERT INTO outcomes VALUES (?, ?, ?, ?)",
    "shadows": "INSERT INTO shadows VALUES (?, ?, ?, ?, ?)",
}
Record = tuple[str, tuple[Any, ...], Callable[[bool], None] | None]  # table, values, who is told whether it is written


class Store:
    """The file and its writer thread. ``put`` never waits; ``alarm`` says what is wrong now, or is None."""

    def __init__(self, path: Path | None, *, observations: bool = True, queue: int = QUEUE) -> None:
        """``path`` None: nothing is kept, and outcomes are refused. ``observations``: keep them beside their decisions."""
        self.path, self._observations, self._most = path, observations, queue
        self.alarm: str | None = None
        self.lost = self.written = 0
        self._waiting: deque[Record] = deque()
        self._wake, self._ending = threading.Event(), False
        self._thread: threading.Thread | None = None
        if path is not None:
            self._connect().close()  # so that a wrong path is an error of the start
            self._thread = threading.Thread(target=self._run, name="decisions", daemon=True)
            self._thread.start()

    def put(self, table: str, *rows: tuple[Any, ...], written: Callable[[bool], None] | None = None) -> bool:
        """Queue records of one table; False where they are lost at once, all of them.

        ``written`` is called by the writer thread, which then hurries.
        """
        if self._thread is None:
            return False
        if len(self._waiting) + len(rows) > self._most:
            self.lost += len(rows)
            self.alarm = self.alarm or f"{self.path}: {self._most:,} records wait for the disk, and more are lost"
            return False
        records: list[Record] = [(table, values, None) for values in rows[:-1]]
        self._waiting.extend([*records, (table, rows[-1], written)])  # in one step: the writer takes all of it, or none
        if written is not None:
            self._wake.set()
        return True

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def close(self) -> None:
        """Write what waits, and end."""
        if self._thread is not None:
            self._ending = True
            self._wake.set()
            self._thread.join()

    def _connect(self) -> sqlite3.Connection:
        try:
            file = sqlite3.connect(str(self.path), isolation_level=None)
            file.execute("PRAGMA journal_mode=WAL")
            file.execute("PRAGMA synchronous=NORMAL")
            file.executescript(TABLES)
        except sqlite3.Error as error:
            raise OSError(f"{self.path}: expected a file for decisions that can be written, got {error}") from error
        return file

    def _run(self) -> None:
        file: sqlite3.Connection | None = None
        while not (self._ending and not self._waiting):
            self._wake.wait(GATHER_S)
            self._wake.clear()
            if not self._waiting:
                continue
            records = [self._waiting.popleft() for _ in range(len(self._waiting))]
            try:
                file = file or self._connect()
                self._write(file, records)
                self.written += len(records)
                self.alarm = None
            except (sqlite3.Error, OSError) as error:
                self._failed(records, error)
                if file is not None:
                    file.close()
                    file = None
                if not self._ending:
                    time.sleep(RETRY_S)
                continue
            for _, _, told in records:
                if told is not None:
                    told(True)
        if file is not None:
            file.close()

    def _write(self, file: sqlite3.Connection, records: list[Record]) -> None:
        """One transaction."""
        file.execute("BEGIN IMMEDIATE")
        try:
            for table, insert in INSERTS.items():
                rows = [self._row(table, values) for name, values, _ in records if name == table]
                if rows:
                    file.executemany(insert, rows)
            file.execute("COMMIT")
        except BaseException:
            if file.in_transaction:
                file.execute("ROLLBACK")
            raise

    def _row(self, table: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The values as SQLite takes them: an action as JSON, an observation (a tree of arrays) as the body of a frame."""
        if table == "decisions":
            *rest, action, rows = values
            observation = frames.encode(rows, LARGEST)[frames.HEAD.size :] if self._observations else None
            return (*rest, json.dumps(action), observation)
        return (*values[:-1], json.dumps(values[-1])) if table == "shadows" else values

    def _failed(self, records: list[Record], error: Exception) -> None:
        if self.alarm is None:
            log.error("decisions are lost", extra={"file": str(self.path), "reason": str(error)})
        self.alarm = f"{self.path}: records are lost: {error}"
        self.lost += len(records)
        for _, _, told in records:
            if told is not None:
                told(False)
