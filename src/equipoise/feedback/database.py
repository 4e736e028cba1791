"""The database of a store: its tables, transactions that are on the disk when they end, and one
sentence for each failure.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

from equipoise.feedback.records import CHOICES, KINDS, PURPOSES, DiskFull
from equipoise.files import check_plain, sync_directory

FILE = "feedback.sqlite"
FORMAT = 1
APPLICATION = 0x65717066  # "eqpf": marks the file as a store
WAIT_S = 120.0  # for another process that writes, such as a long import
# Tables whose rows are never changed or removed.
KEPT = ("plan", "texts", "queries", "leases", "answers", "annotators", "revocations", "rounds")


def _among(values: tuple[str, ...]) -> str:
    return f"IN ({', '.join(map(repr, values))})"


TABLES = f"""
CREATE TABLE plan (json TEXT NOT NULL) STRICT;
CREATE TABLE texts (hash TEXT PRIMARY KEY, content BLOB NOT NULL) STRICT;
CREATE TABLE queries (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL CHECK (kind {_among(KINDS)}),
    prompt TEXT,
    item_left TEXT NOT NULL,
    item_right TEXT NOT NULL CHECK (item_right <> item_left),
    purpose TEXT NOT NULL CHECK (purpose {_among(PURPOSES)}),
    gold TEXT CHECK (gold {_among(CHOICES)}),
    version INTEGER,
    step INTEGER,
    created REAL NOT NULL
) STRICT;
CREATE INDEX queries_by_items ON queries (item_left, item_right);
CREATE INDEX queries_of_gold ON queries (id) WHERE purpose = 'gold';
CREATE TABLE leases (
    id INTEGER PRIMARY KEY,
    query INTEGER NOT NULL REFERENCES queries,
    annotator TEXT NOT NULL,
    swapped INTEGER NOT NULL CHECK (swapped IN (0, 1)),
    reason TEXT NOT NULL CHECK (reason {_among(PURPOSES)}),
    until REAL NOT NULL
) STRICT;
CREATE INDEX leases_by_query ON leases (query);
CREATE INDEX leases_by_annotator ON leases (annotator, until);
CREATE TABLE answers (
    row INTEGER PRIMARY KEY,
    query INTEGER NOT NULL REFERENCES queries,
    annotator TEXT NOT NULL,
    choice TEXT CHECK (choice {_among(CHOICES)}),
    undoes INTEGER UNIQUE REFERENCES answers,
    lease INTEGER UNIQUE REFERENCES leases,
    swapped INTEGER CHECK (swapped IN (0, 1)),
    latency_s REAL,
    time REAL NOT NULL,
    CHECK ((choice IS NULL) = (undoes IS NOT NULL))
) STRICT;
CREATE INDEX answers_by_query ON answers (query, annotator);
CREATE INDEX answers_by_annotator ON answers (annotator, row);
CREATE VIEW kept AS SELECT * FROM answers AS a WHERE choice IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM answers AS u WHERE u.undoes = a.row);
CREATE TABLE annotators (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    token_hash TEXT NOT NULL UNIQUE,
    created REAL NOT NULL
) STRICT;
CREATE INDEX annotators_by_name ON annotators (name);
CREATE TABLE revocations (
    annotator INTEGER PRIMARY KEY REFERENCES annotators,
    time REAL NOT NULL
) STRICT;
-- A round of a run that learns from the answers: the row of answers that it read up to.
CREATE TABLE rounds (
    run TEXT NOT NULL,
    number INTEGER NOT NULL,
    upto INTEGER NOT NULL,
    time REAL NOT NULL,
    PRIMARY KEY (run, number)
) STRICT;
-- Queries that need more answers. This table follows from the others, so its rows may go.
CREATE TABLE open (query INTEGER PRIMARY KEY REFERENCES queries) STRICT;
""" + "".join(
    f"CREATE TRIGGER {table}_no_{act.lower()} BEFORE {act} ON {table} "
    f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are never changed or removed'); END;\n"
    for table in KEPT
    for act in ("UPDATE", "DELETE")
)


class Database:
    """A connection to the database of a store, for the threads of one process."""

    def __init__(self, folder: Path) -> None:
        """ValueError if the folder is no store, a damaged one, or one of a newer version."""
        self.path = folder / FILE
        if not self.path.exists():
            got = "another folder" if folder.is_dir() else "a file" if folder.exists() else "none"
            raise ValueError(
                f"{folder}: must be a feedback store, got {got}; 'equipoise feedback import' "
                "or a training with --reward preferences creates one"
            )
        check_plain(self.path)  # not opened: its end would end the locks of this process on it
        self._lock = threading.RLock()
        with _spoken(self.path):
            self._db = sqlite3.connect(
                f"{self.path.resolve().as_uri()}?mode=rw",
                uri=True,
                timeout=WAIT_S,
                isolation_level=None,
                check_same_thread=False,
            )
        try:
            with _spoken(self.path):
                self._check()
            self._file = self._on_disk()
        except BaseException:
            self._db.close()
            raise

    def _check(self) -> None:
        for setting in (
            "trusted_schema = OFF",
            "cell_size_check = ON",
            "foreign_keys = ON",
            "recursive_triggers = ON",
            "synchronous = FULL",
        ):
            self._db.execute(f"PRAGMA {setting}")
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION:
            raise ValueError(f"{self.path}: must be a feedback store, got another database")
        if version > FORMAT:
            raise ValueError(
                f"{self.path}: must be a store of version {FORMAT}, got {version}; update Equipoise"
            )
        if version != FORMAT or _tables(self._db) != _expected():
            raise ValueError(
                f"{self.path}: must have the tables and triggers of a store of version {FORMAT}, "
                "got others; it was changed by another program"
            )
        (found,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise _damaged(self.path, found.splitlines()[-1])
        (mode,) = self._db.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise ValueError(f"{self.path}: must be on a disk with WAL of SQLite, got {mode}")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction; it is on the disk when this ends, or nothing of it is."""
        with self._lock, _spoken(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                if self._on_disk() != self._file:  # SQLite would write on to a removed file
                    raise OSError(
                        f"{self.path}: nothing was stored, since the store was removed or replaced "
                        "while it was open; open it again"
                    )
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite itself rolls back after some errors
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A transaction that reads one state of the store."""
        with self._lock, _spoken(self.path):
            self._db.execute("BEGIN")
            try:
                yield self._db
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def _on_disk(self) -> tuple[int, int] | None:
        """Return device and number of the file at the path; None if there is none."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def close(self) -> None:
        with self._lock:
            self._db.close()


def create(folder: Path, plan: str) -> None:
    """Make the database in a folder that has none; FileExistsError if it has one."""
    handle, name = tempfile.mkstemp(prefix=f".{FILE}.", suffix=".tmp", dir=folder)
    os.close(handle)
    temporary = Path(name)
    try:
        with _spoken(folder / FILE), closing(sqlite3.connect(name)) as db:
            db.executescript(f"PRAGMA application_id = {APPLICATION}; BEGIN; {TABLES} COMMIT;")
            db.execute("INSERT INTO plan VALUES (?)", (plan,))
            db.execute(f"PRAGMA user_version = {FORMAT}")
            db.commit()
        temporary.chmod(0o644)
        os.link(temporary, folder / FILE)  # unlike a rename, it fails if another process was first
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(folder)


def _tables(db: sqlite3.Connection) -> set[tuple[str, str, str | None]]:
    return set(
        db.execute("SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'")
    )


@cache
def _expected() -> set[tuple[str, str, str | None]]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(TABLES)
        return _tables(db)


@contextmanager
def _spoken(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into one sentence each; a wrong statement stays one."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
        raise
    except sqlite3.DatabaseError as error:
        said = str(error)
        if said == "database or disk is full":
            raise DiskFull.at(path) from None
        if said in ("database is locked", "disk I/O error", "unable to open database file") or (
            said.startswith("attempt to write a readonly")
        ):
            raise OSError(f"{path}: nothing was stored: {said}") from None
        raise _damaged(path, said) from None
    except UnicodeDecodeError as error:
        raise _damaged(path, f"{error.reason} in a text") from None


def _damaged(path: Path, why: str) -> ValueError:
    return ValueError(
        f"{path}: must be a whole database, got a damaged one ({why}); restore a copy"
    )
