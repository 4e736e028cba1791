"""Questions of a store for a page whose requests may arrive twice: each answer counts once."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from equipoise.feedback import Choice, Question, Refused, Store
from equipoise.feedback.database import FILE
from equipoise.feedback.records import MIRRORED

LEASE = """
SELECT l.query, l.swapped, a.row, a.choice, (SELECT max(id) FROM leases AS m
    WHERE m.query = l.query AND m.annotator = l.annotator)
FROM leases AS l LEFT JOIN answers AS a ON a.lease = l.id WHERE l.id = ? AND l.annotator = ?
"""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with the number of its lease, which names the answer in every repeated request."""

    lease: int
    question: Question


class Desk:
    """The store as the page uses it, for one thread at a time.

    A lease takes one answer, so a request that arrives again finds the answer of its lease. An
    undo names the row that it takes back for the same reason.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        # SQLite alone may open the file again: closing any other handle would end its locks.
        self._db = sqlite3.connect(
            f"{(store.path / FILE).resolve().as_uri()}?mode=ro",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
        )

    def close(self) -> None:
        self._db.close()

    def ask(self, name: str) -> Asked | None:
        """Return the question that an annotator holds, or hold the next one; None if there is
        none.
        """
        question = self._store.next_query(name)
        if question is None:
            return None
        (lease,) = self._db.execute(
            "SELECT max(id) FROM leases WHERE query = ? AND annotator = ?",
            (question.query.id, name),
        ).fetchone()
        return Asked(lease, question)

    def answer(self, name: str, lease: int, choice: Choice, latency_s: float) -> int:
        """Store the answer to a lease, and return its row once it is on the disk.

        The same answer to the same lease returns the same row. ``Refused`` for another answer, and
        for a lease that is not the annotator's newest one of its query.
        """
        found = self._db.execute(LEASE, (lease, name)).fetchone()
        if found is None:
            raise Refused(f"This question was not asked of {name}.")
        query, swapped, row, stored, newest = found
        if row is not None:
            if stored != (MIRRORED.get(choice, choice) if swapped else choice):
                raise Refused("This question has another answer already.")
            return int(row)
        if lease != newest:
            raise Refused("This question was asked again later.")
        return self._store.answer(query, name, choice, latency_s)

    def undo(self, name: str, row: int) -> None:
        """Take back the annotator's newest answer, which must be ``row``; nothing happens if that
        was done already.
        """
        (undone,) = self._db.execute(
            "SELECT EXISTS (SELECT 1 FROM answers WHERE undoes = ? AND annotator = ?)", (row, name)
        ).fetchone()
        if undone:
            return
        if self.last_row(name) != row:
            raise Refused("Only your newest answer can be undone.")
        self._store.undo(name)

    def last_row(self, name: str) -> int | None:
        """Return the row of the annotator's newest answer that was given to a question here."""
        found = self._db.execute(
            "SELECT row FROM kept WHERE annotator = ? AND lease IS NOT NULL "
            "ORDER BY row DESC LIMIT 1",
            (name,),
        ).fetchone()
        return None if found is None else int(found[0])

    def counts(self, name: str) -> tuple[int, int]:
        """Return the numbers of the annotator's answers and of queries that need more answers."""
        own, open_ = self._db.execute(
            "SELECT (SELECT count(*) FROM kept WHERE annotator = ?), (SELECT count(*) FROM open)",
            (name,),
        ).fetchone()
        return int(own), int(open_)
