"""Rows of a store: the statements that several methods share. The caller holds a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from equipoise.feedback.items import digest
from equipoise.feedback.records import MIRRORED, Answer, Ask, Choice, Query

QUERY = "id, kind, prompt, item_left, item_right, purpose, gold, version, step, created"
# Answers to a query, and questions that other annotators hold: each takes one of its places.
TAKEN = (
    "(SELECT count(DISTINCT annotator) FROM kept WHERE kept.query = {query}) + "
    "(SELECT count(DISTINCT annotator) FROM leases AS l WHERE l.query = {query} AND "
    "l.annotator <> :name AND l.until > :now AND l.reason NOT IN ('gold', 'repeat') AND "
    "NOT EXISTS (SELECT 1 FROM answers WHERE lease = l.id))"
)
# The row {one} of answers counts as of row :upto: it was not undone by then.
COUNTS = (
    "{one}.choice IS NOT NULL AND NOT EXISTS (SELECT 1 FROM answers AS u WHERE "
    "u.undoes = {one}.row AND u.row <= :upto)"
)
# The query of an answer in rows :first to :last that this annotator gave once (:own), or never.
REPEAT = (
    "SELECT k.query FROM kept AS k JOIN queries AS q ON q.id = k.query WHERE k.row >= :first AND "
    "k.row <= :last AND k.lease IS NOT NULL AND q.purpose <> 'gold' AND (k.annotator = :name) = "
    ":own AND (SELECT count(*) FROM kept AS m WHERE m.query = k.query AND m.annotator = :name) = "
    ":own ORDER BY k.row LIMIT 1"
)


def query(db: sqlite3.Connection, number: int) -> Query:
    """Return a query; ValueError if there is none of this number."""
    row = db.execute(f"SELECT {QUERY} FROM queries WHERE id = ?", (number,)).fetchone()
    if row is None:
        raise ValueError(f"query: must be a number of a query in the store, got {number!r}")
    return Query(*row)


def put_text(db: sqlite3.Connection, data: bytes) -> str:
    """Add a text if it is new, and return its hash."""
    hash_ = digest(data)
    db.execute("INSERT INTO texts VALUES (?, ?) ON CONFLICT DO NOTHING", (hash_, data))
    return hash_


def put_query(db: sqlite3.Connection, new: Query) -> int:
    """Add a query and return its number; ``new.id`` is not read."""
    row = (new.kind, new.prompt, new.left, new.right, new.purpose, new.gold)
    places = ", ".join("?" * 9)
    number = db.execute(
        f"INSERT INTO queries ({QUERY.removeprefix('id, ')}) VALUES ({places})",
        (*row, new.version, new.step, new.created),
    ).lastrowid
    assert number is not None
    if new.purpose != "gold":
        db.execute("INSERT INTO open VALUES (?)", (number,))
    return number


def put_asks(
    db: sqlite3.Connection,
    asks: Sequence[Ask],
    like: Query,
    annotator: str,
    wanted: int,
    most: int,
) -> None:
    """Add queries of a round with the answers of ``annotator``, until there are ``most`` queries
    about clips. ``like``: a query with their version, step and time; ``wanted``: answers that close
    a query.
    """
    (there,) = db.execute("SELECT count(*) FROM queries WHERE kind = 'clip'").fetchone()
    for ask in asks:
        sides, choice = (ask.left, ask.right), ask.choice
        if (found := same_pair(db, None, *sides)) is not None:
            number, mirrored = found
            choice = MIRRORED.get(choice, choice) if choice and mirrored else choice
        elif there >= most:
            continue
        else:
            there += 1
            new = replace(like, left=ask.left, right=ask.right, purpose=ask.purpose)
            number = put_query(db, new)
        if choice is None or has_answer(db, number, annotator):
            continue
        put_answer(db, Answer(0, number, annotator, choice, None, None, like.created, False), None)
        close_answered(db, number, wanted)


def put_answer(db: sqlite3.Connection, answer: Answer, lease: int | None) -> int:
    """Add an answer and return its row; ``answer.row`` is not read."""
    one = (answer.query, answer.annotator, answer.choice, lease, answer.swapped)
    row = db.execute(
        "INSERT INTO answers (query, annotator, choice, lease, swapped, latency_s, time) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (*one, answer.latency_s, round(answer.time, 6)),  # as exact as the text of a time
    ).lastrowid
    assert row is not None
    return row


def close_answered(db: sqlite3.Connection, number: int, wanted: int) -> None:
    """Take a query off the open ones if it has its answers."""
    db.execute(
        "DELETE FROM open WHERE query = ?1 AND (SELECT count(DISTINCT annotator) FROM kept WHERE "
        "query = ?1) >= ?2",
        (number, wanted),
    )


def same_pair(
    db: sqlite3.Connection, prompt: str | None, left: str, right: str
) -> tuple[int, bool] | None:
    """Find the oldest query with this prompt and these items -> (number, are its sides
    exchanged).
    """
    found: tuple[int, int] | None = db.execute(
        "SELECT id, item_left = ?3 FROM queries WHERE prompt IS ?1 AND ((item_left = ?2 AND "
        "item_right = ?3) OR (item_left = ?3 AND item_right = ?2)) ORDER BY id LIMIT 1",
        (prompt, left, right),
    ).fetchone()
    return None if found is None else (found[0], bool(found[1]))


def has_answer(
    db: sqlite3.Connection,
    number: int,
    annotator: str,
    choice: Choice | None = None,
    time: float | None = None,
) -> bool:
    """Is there an answer that counts of this annotator, with this choice and time if given?"""
    found = db.execute(
        "SELECT 1 FROM kept WHERE query = ?1 AND annotator = ?2 AND (?3 IS NULL OR choice = ?3) "
        "AND (?4 IS NULL OR time = ?4)",
        (number, annotator, choice, time),
    )
    return found.fetchone() is not None


def active(db: sqlite3.Connection, name: str) -> int | None:
    """Return the number of the annotator's newest token; None if it is revoked or missing."""
    found: tuple[int, int] | None = db.execute(
        "SELECT id, EXISTS (SELECT 1 FROM revocations WHERE annotator = a.id) FROM annotators AS a "
        "WHERE name = ? ORDER BY id DESC LIMIT 1",
        (name,),
    ).fetchone()
    return None if found is None or found[1] else found[0]


def round_of(db: sqlite3.Connection, run: str, number: int) -> int | None:
    """Return the row of answers that a round of a run read up to; None if it was not asked."""
    found: tuple[int] | None = db.execute(
        "SELECT upto FROM rounds WHERE run = ? AND number = ?", (run, number)
    ).fetchone()
    return None if found is None else found[0]


def put_round(db: sqlite3.Connection, run: str, number: int, now: float) -> int:
    """Note that a round of a run reads all answers of now, and return the newest row of them."""
    (upto,) = db.execute("SELECT coalesce(max(row), 0) FROM answers").fetchone()
    db.execute("INSERT INTO rounds VALUES (?, ?, ?, ?)", (run, number, upto, now))
    return int(upto)
