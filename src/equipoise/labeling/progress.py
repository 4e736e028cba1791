"""Progress and agreement of a store for the page of the owner."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict

from equipoise.feedback import Answer, Choice, Store
from equipoise.feedback.agreement import Agreement, agreement

REST = 10  # times that the last computation took, between two computations


class Progress:
    """Reads only new answers, and computes the agreement the less often the longer it takes."""

    def __init__(self, store: Store) -> None:
        self._store, self._lock = store, threading.Lock()
        self._row = self._query = 0  # the newest ones that were read
        self._answers = dict[int, Answer]()
        self._gold = dict[int, Choice]()
        self._read: dict[str, object] = {}
        self._agreement: Agreement | None = None
        self._of, self._next = -1, 0.0  # row of the agreement; time of the earliest next one

    def read(self) -> None:
        """Read the changes of the store; in the thread of the store."""
        last = self._store.last_row()
        for one in self._store.answers(self._row, last):
            self._answers[one.row] = one
        for row in self._store.undone(self._row, last):
            self._answers.pop(row, None)
        self._row = last
        for query in self._store.queries(self._query):
            self._query = query.id
            if query.gold is not None:
                self._gold[query.id] = query.gold
        people = [asdict(one) for one in self._store.annotators()]
        self._read = {"counts": asdict(self._store.counts()), "annotators": people}

    def told(self) -> dict[str, object]:
        """Return what the page shows; in any thread."""
        with self._lock:
            began = time.monotonic()
            if self._of != self._row and began >= self._next:
                self._of = self._row
                self._agreement = agreement(list(self._answers.values()), dict(self._gold))
                now = time.monotonic()
                self._next = now + REST * (now - began)
            found = self._agreement
        if found is None:
            return self._read
        return self._read | {
            "alpha": found.nominal,
            "shared": found.shared,
            "each": {name: asdict(one) for name, one in found.annotators.items()},
        }
