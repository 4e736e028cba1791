"""The store of people's preferences: queries go in, questions and answers go out."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from equipoise.feedback import database, rows
from equipoise.feedback.database import Database
from equipoise.feedback.items import (
    Arrays,
    check_hash,
    digest,
    parse_text,
    read_segment,
    segment_bytes,
    text_bytes,
    write,
)
from equipoise.feedback.records import (
    CHOICES,
    KINDS,
    MIRRORED,
    PLAN,
    PURPOSES,
    Annotator,
    Answer,
    Ask,
    Choice,
    Counts,
    Kind,
    Pair,
    Plan,
    Purpose,
    Query,
    Question,
    Refused,
    Text,
)
from equipoise.files import local_path, parse_json, sync_directory
from equipoise.hints import shortened
from equipoise.schema import MOST, check

SEGMENTS = "segments"
SYNTHETIC = "synthetic"  # the annotator of answers that a program gives
LONGEST_LATENCY_S = 7 * 86_400.0
NAME = re.compile(r"\S(?:.{0,98}\S)?")


class Store:
    """A store of preferences in a folder, open for the threads of this process.

    Open it again in a forked process: a connection does not survive a fork.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a store; ValueError if there is none, or a damaged or a newer one."""
        self.path = local_path(path)
        self._db = Database(self.path)
        try:
            with self._db.reading() as db:
                found = db.execute("SELECT json FROM plan").fetchone()
            said = parse_json(found[0].encode() if found else b"", self._db.path)
            self.plan = Plan(**check(said, PLAN, f"{self._db.path}: plan"))
        except BaseException:
            self._db.close()
            raise

    @classmethod
    def create(cls, path: str | os.PathLike[str], plan: Plan | None = None) -> Self:
        """Create a store in a new or an empty folder, and open it."""
        folder, said = local_path(path), check(asdict(plan or Plan()), PLAN, "plan")
        folder.mkdir(parents=True, exist_ok=True)
        if there := in_the_way(folder):
            raise ValueError(f"{folder}: must be a new or an empty folder, got one with {there}")
        (folder / SEGMENTS).mkdir(exist_ok=True)
        try:
            database.create(folder, json.dumps(said))
        except FileExistsError:
            raise ValueError(f"{folder}: must be a new folder, got a store") from None
        sync_directory(folder.parent)
        return cls(folder)

    @classmethod
    def open_or_create(cls, path: str | os.PathLike[str]) -> Self:
        """Open a store; create it first in a new or an empty folder, as others may do at once."""
        folder = local_path(path)
        if (folder / database.FILE).exists() or folder.is_file():
            return cls(folder)
        try:
            return cls.create(folder)
        except ValueError:
            if not (folder / database.FILE).exists():
                raise
            return cls(folder)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open a store; ValueError if there is none, or a damaged or a newer one."""
        return cls(path)

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -------------------------------------------------------------------------------------- items

    def add_segment(self, arrays: Arrays) -> str:
        """Store the arrays of a clip by name, and return their hash."""
        data = segment_bytes(arrays)
        path = self._segment(hash_ := digest(data))
        if not path.is_file() or path.stat().st_size != len(data) or path.read_bytes() != data:
            write(path, data)
        return hash_

    def segment(self, hash_: str) -> dict[str, NDArray[np.generic]]:
        """Return the arrays of a clip; ValueError if the file is damaged or missing."""
        return read_segment(self._segment(check_hash(hash_, "segment")), hash_)

    def add_text(self, text: Text) -> str:
        """Store a text or the messages of a chat, and return its hash."""
        data = text_bytes(text)
        with self._db.writing() as db:
            return rows.put_text(db, data)

    def text(self, hash_: str) -> Text:
        """Return a text or messages; ValueError if it is damaged or missing."""
        check_hash(hash_, "text")
        with self._db.reading() as db:
            row = db.execute("SELECT content FROM texts WHERE hash = ?", (hash_,)).fetchone()
        if row is None:
            raise ValueError(f"{self._db.path}: must have the text {hash_[:12]}, got none")
        return parse_text(row[0], hash_, self._db.path)

    # ------------------------------------------------------------------------------------ queries

    def add_query(
        self,
        kind: Kind,
        left: str,
        right: str,
        *,
        prompt: str | None = None,
        purpose: Purpose = "random",
        gold: Choice | None = None,
        version: int | None = None,
        step: int | None = None,
    ) -> int:
        """Add a pair of stored items to compare, and return the number of the query.

        ``prompt``: the hash of a stored text. ``gold``: the right answer of a query of purpose
        "gold".
        """
        allowed = [one for one in PURPOSES if one != "repeat"]
        _check_among("kind", kind, KINDS)
        _check_among("purpose", purpose, allowed)
        if (gold is None) != (purpose != "gold"):
            raise ValueError(
                f"gold: must be given for the purpose gold alone, got {gold!r} for {purpose!r}"
            )
        if gold is not None:
            _check_among("gold", gold, CHOICES)
        for name, number in (("version", version), ("step", step)):
            if number is not None and not 0 <= number <= MOST:
                raise ValueError(f"{name}: must be 0 to {MOST:,}, got {number!r}")
        if left == right:
            raise ValueError(f"right: must differ from left, got {right[:12]!r} for both")
        clips = [left, right] if kind == "clip" else []
        for one in clips:
            if not self._segment(check_hash(one, "item")).is_file():
                raise ValueError(f"item: must be a stored segment, got {one[:12]!r}")
        texts = [left, right] if kind == "text" else []
        with self._db.writing() as db:
            for one in [*texts, *([] if prompt is None else [prompt])]:
                check_hash(one, "item")
                if not db.execute("SELECT 1 FROM texts WHERE hash = ?", (one,)).fetchone():
                    raise ValueError(f"item: must be a stored text, got {one[:12]!r}")
            query = Query(0, kind, prompt, left, right, purpose, gold, version, step, time.time())
            return rows.put_query(db, query)

    def query(self, number: int) -> Query:
        """Return a query; ValueError if there is none of this number."""
        with self._db.reading() as db:
            return rows.query(db, number)

    def queries(self, after: int = 0) -> list[Query]:
        """Return the queries whose numbers are larger than ``after``, in order."""
        with self._db.reading() as db:
            found = db.execute(
                f"SELECT {rows.QUERY} FROM queries WHERE id > ? ORDER BY id", (after,)
            )
            return [Query(*row) for row in found]

    def next_query(self, annotator: str, now: float | None = None) -> Question | None:
        """Hand the next question to an annotator and hold it for ``plan.lease_s``; None if there is
        none.

        An annotator who holds a question gets the same one again. Open queries come oldest first.
        """
        now = time.time() if now is None else now
        with self._db.writing() as db:
            _check_active(db, annotator)
            held = db.execute(
                "SELECT query, swapped, reason, until FROM leases AS l WHERE annotator = ? AND "
                "until > ? AND NOT EXISTS (SELECT 1 FROM answers WHERE lease = l.id) "
                "ORDER BY id DESC LIMIT 1",
                (annotator, now),
            ).fetchone()
            if held is not None:
                query, swapped, reason, until = held
                return _question(rows.query(db, query), bool(swapped), reason, until)
            (earlier,) = db.execute(
                "SELECT count(*) FROM leases WHERE annotator = ?", (annotator,)
            ).fetchone()
            draw = _Draw(self.plan.seed, annotator, earlier)
            found = self._choose(db, annotator, now, draw)
            if found is None:
                return None
            number, repeat = found
            query = rows.query(db, number)
            reason = "repeat" if repeat else query.purpose
            return self._lease(db, query, annotator, draw.mirror < 0.5, reason, now)

    def _choose(
        self, db: sqlite3.Connection, annotator: str, now: float, draw: _Draw
    ) -> tuple[int, bool] | None:
        """Choose the next query -> (number, is it a repeat); None if no query is open."""
        plan = self.plan
        given = {"name": annotator, "now": now, "wanted": plan.answers_per_query}
        fresh = db.execute(
            "SELECT query FROM open AS o WHERE NOT EXISTS (SELECT 1 FROM kept WHERE "
            "kept.query = o.query AND kept.annotator = :name) AND "
            f"{rows.TAKEN.format(query='o.query')} < :wanted ORDER BY query LIMIT 1",
            given,
        ).fetchone()
        if fresh is None:
            return None
        if draw.kind < plan.gold_share:
            gold = db.execute(
                "SELECT id FROM queries AS q WHERE purpose = 'gold' AND NOT EXISTS (SELECT 1 FROM "
                "kept WHERE kept.query = q.id AND kept.annotator = :name) ORDER BY id LIMIT 1",
                given,
            ).fetchone()
            if gold is not None:
                return gold[0], False
        elif draw.kind < plan.gold_share + plan.repeat_share:
            (newest,) = db.execute("SELECT coalesce(max(row), 0) FROM answers").fetchone()
            last = newest - plan.repeat_after
            own = draw.own < 0.5
            for mine, first in ((own, draw.pick * last), (own, 0), (not own, draw.pick * last)):
                repeat = db.execute(
                    rows.REPEAT, given | {"own": mine, "first": first, "last": last}
                )
                if (row := repeat.fetchone()) is not None:
                    return row[0], True
        return fresh[0], False

    def _lease(
        self,
        db: sqlite3.Connection,
        query: Query,
        annotator: str,
        swapped: bool,
        reason: Purpose,
        now: float,
    ) -> Question:
        until = now + self.plan.lease_s
        db.execute(
            "INSERT INTO leases (query, annotator, swapped, reason, until) VALUES (?, ?, ?, ?, ?)",
            (query.id, annotator, swapped, reason, until),
        )
        return _question(query, swapped, reason, until)

    # ------------------------------------------------------------------------------------- rounds

    def round_of(self, run: str, number: int) -> int | None:
        """Return the row of answers that a round of a run read up to; None if it was not asked."""
        with self._db.reading() as db:
            return rows.round_of(db, run, number)

    def ask(
        self,
        run: str,
        number: int,
        asks: Sequence[Ask],
        *,
        version: int,
        step: int,
        most: int = MOST,
    ) -> int:
        """Add the queries of a round of a run, with the answers of ``asks``, all or none; return
        the row of answers that the round reads up to.

        Queries about clips stay at most ``most``, whoever adds some at the same time; the last of
        ``asks`` are left out.

        A round that is there adds nothing, so a run that does it again reads the same answers. A
        pair that is there in either order is the same query, and is answered by ``SYNTHETIC`` once.
        """
        for one in {hash_ for ask in asks for hash_ in (ask.left, ask.right)}:
            if not self._segment(check_hash(one, "item")).is_file():
                raise ValueError(f"item: must be a stored segment, got {one[:12]!r}")
        now = time.time()
        with self._db.writing() as db:
            if (upto := rows.round_of(db, run, number)) is not None:
                return upto
            new = Query(0, "clip", None, "", "", "random", None, version, step, now)
            rows.put_asks(db, asks, new, SYNTHETIC, self.plan.answers_per_query, most)
            return rows.put_round(db, run, number, now)

    # ------------------------------------------------------------------------------------ answers

    def answer(
        self,
        query: int,
        annotator: str,
        choice: Choice,
        latency_s: float,
        now: float | None = None,
    ) -> int:
        """Store the answer to a held question, and return its row once it is on the disk.

        ``choice``: the side as the screen showed it. An expired lease still counts until the query
        was given to somebody else. ``Refused`` for a question that is not held, or a revoked
        annotator; ``DiskFull`` if nothing could be stored.
        """
        now = time.time() if now is None else now
        _check_among("choice", choice, CHOICES)
        if not 0 <= latency_s <= LONGEST_LATENCY_S:
            raise ValueError(
                f"latency_s: must be 0 to {LONGEST_LATENCY_S:,.0f} seconds, got {latency_s!r}"
            )
        with self._db.writing() as db:
            _check_active(db, annotator)
            lease = db.execute(
                "SELECT l.id, l.swapped, l.reason, l.until, a.row FROM leases AS l LEFT JOIN "
                "answers AS a ON a.lease = l.id WHERE l.query = ? AND l.annotator = ? "
                "ORDER BY l.id DESC LIMIT 1",
                (query, annotator),
            ).fetchone()
            if lease is None:
                raise Refused(f"query {query}: must be held by {annotator}, got an answer without")
            number, swapped, reason, until, row = lease
            if row is not None:
                raise Refused(f"query {query}: {annotator} has answered it; ask for the next one")
            if until <= now and reason not in ("gold", "repeat"):
                others = f"SELECT {rows.TAKEN.format(query=':query')} >= :wanted"
                given = {"query": query, "name": annotator, "now": now}
                if db.execute(others, given | {"wanted": self.plan.answers_per_query}).fetchone()[
                    0
                ]:
                    raise Refused(
                        f"query {query}: the lease of {annotator} ended and somebody else got it; "
                        "ask for the next one"
                    )
            kept: Choice = MIRRORED.get(choice, choice) if swapped else choice
            answer = Answer(0, query, annotator, kept, bool(swapped), latency_s, now, False)
            found = rows.put_answer(db, answer, number)
            rows.close_answered(db, query, self.plan.answers_per_query)
            return found

    def undo(self, annotator: str, now: float | None = None) -> Question | None:
        """Take back the annotator's newest answer and hold its question again; None if there is
        none.
        """
        now = time.time() if now is None else now
        with self._db.writing() as db:
            _check_active(db, annotator)
            row = db.execute(
                "SELECT k.row, k.query, l.swapped, l.reason FROM kept AS k JOIN leases AS l "
                "ON l.id = k.lease WHERE k.annotator = ? ORDER BY k.row DESC LIMIT 1",
                (annotator,),
            ).fetchone()
            if row is None:
                return None
            undone, number, swapped, reason = row
            db.execute(
                "INSERT INTO answers (query, annotator, undoes, time) VALUES (?, ?, ?, ?)",
                (number, annotator, undone, now),
            )
            if reason not in ("gold", "repeat"):
                db.execute("INSERT OR IGNORE INTO open VALUES (?)", (number,))
            return self._lease(db, rows.query(db, number), annotator, bool(swapped), reason, now)

    def answers(self, after: int = 0, upto: int | None = None) -> list[Answer]:
        """Return the answers in rows ``after`` + 1 to ``upto``, without those undone by then.

        ``answers(upto=row)`` returns the same whenever it is asked, so a learner that resumes reads
        the same answers.
        """
        with self._db.reading() as db:
            found = db.execute(
                "SELECT row, query, annotator, choice, swapped, latency_s, time, EXISTS (SELECT 1 "
                "FROM answers AS b WHERE b.query = a.query AND b.annotator = a.annotator "
                f"AND b.row < a.row AND {rows.COUNTS.format(one='b')}) FROM answers AS a "
                f"WHERE a.row > :after AND a.row <= :upto AND {rows.COUNTS.format(one='a')} "
                "ORDER BY row",
                {"after": after, "upto": MOST if upto is None else upto},
            )
            return [
                Answer(row, query, name, choice, _flag(swapped), latency_s, when, bool(repeat))
                for row, query, name, choice, swapped, latency_s, when, repeat in found
            ]

    def undone(self, after: int = 0, upto: int | None = None) -> list[int]:
        """Return the rows of answers that rows ``after`` + 1 to ``upto`` took back, for a reader
        that holds them.
        """
        with self._db.reading() as db:
            found = db.execute(
                "SELECT undoes FROM answers WHERE undoes IS NOT NULL AND row > ? AND row <= ?",
                (after, MOST if upto is None else upto),
            )
            return [row for (row,) in found]

    def last_row(self) -> int:
        """Return the number of the newest row of answers; 0 if there is none."""
        with self._db.reading() as db:
            return int(db.execute("SELECT coalesce(max(row), 0) FROM answers").fetchone()[0])

    def counts(self) -> Counts:
        """Return the numbers of queries and answers."""
        with self._db.reading() as db:
            purposes = dict(db.execute("SELECT purpose, count(*) FROM queries GROUP BY purpose"))
            undone = "SELECT count(*) FROM answers WHERE undoes IS NOT NULL"
            (open_,), (kept,), (gone,) = (
                db.execute(sql).fetchone()
                for sql in ("SELECT count(*) FROM open", "SELECT count(*) FROM kept", undone)
            )
        return Counts(
            {one: purposes[one] for one in PURPOSES if one in purposes}, open_, kept, gone
        )

    def import_pairs(self, pairs: Sequence[Pair]) -> tuple[int, int]:
        """Add pairs of texts with their answers, all or none -> (new queries, new answers).

        A pair that is there in either order is the same query. An answer that is there with its
        annotator and choice, and its time if that is given, is not added again.
        """
        now, queries, answers = time.time(), 0, 0
        with self._db.writing() as db:
            for pair in pairs:
                texts = (pair.prompt, pair.left, pair.right)
                prompt, *items = [None if one is None else rows.put_text(db, one) for one in texts]
                left, right = str(items[0]), str(items[1])
                found = rows.same_pair(db, prompt, left, right)
                if found is None:
                    query = Query(0, "text", prompt, left, right, "import", None, None, None, now)
                    number, mirrored, queries = rows.put_query(db, query), False, queries + 1
                else:
                    number, mirrored = found
                for one in pair.answers:
                    kept: Choice = MIRRORED.get(one.choice, one.choice) if mirrored else one.choice
                    if rows.has_answer(db, number, one.annotator, kept, one.time):
                        continue
                    swapped = None if one.swapped is None else one.swapped != mirrored
                    when = now if one.time is None else one.time
                    answer = Answer(
                        0, number, one.annotator, kept, swapped, one.latency_s, when, False
                    )
                    rows.put_answer(db, answer, None)
                    answers += 1
                if pair.answers:
                    wanted = 1 if found is None else self.plan.answers_per_query
                    rows.close_answered(db, number, wanted)
        return queries, answers

    # --------------------------------------------------------------------------------- annotators

    def add_annotator(self, name: str) -> str:
        """Add a person, and return the token of the person's link, which is stored as a hash only.

        A revoked name may be added again.
        """
        check_name(name, "annotator")
        token = secrets.token_urlsafe(24)
        with self._db.writing() as db:
            if rows.active(db, name) is not None:
                raise Refused(
                    f"annotator: must be a new or a revoked name, got {name!r}; revoke it first"
                )
            db.execute(
                "INSERT INTO annotators (name, token_hash, created) VALUES (?, ?, ?)",
                (name, digest(token.encode()), time.time()),
            )
        return token

    def revoke(self, name: str) -> None:
        """Refuse all further questions and answers of a person; earlier answers stay."""
        with self._db.writing() as db:
            _check_active(db, name)
            db.execute(
                "INSERT INTO revocations VALUES (?, ?)", (rows.active(db, name), time.time())
            )

    def annotator_of(self, token: str) -> str | None:
        """Return the name of the person with this token; None if it is unknown or revoked."""
        with self._db.reading() as db:
            found = db.execute(
                "SELECT name FROM annotators AS a WHERE token_hash = ? AND NOT EXISTS "
                "(SELECT 1 FROM revocations WHERE annotator = a.id)",
                (digest(token.encode("utf-8", "surrogatepass")),),
            ).fetchone()
        return None if found is None else str(found[0])

    def annotators(self) -> list[Annotator]:
        """Return the people who ever had a token, in the order of their newest tokens."""
        with self._db.reading() as db:
            found = db.execute(
                "SELECT name, created, NOT EXISTS (SELECT 1 FROM revocations WHERE annotator = "
                "a.id) FROM annotators AS a WHERE id = (SELECT max(id) FROM annotators AS b WHERE "
                "b.name = a.name) ORDER BY id"
            )
            return [Annotator(name, created, bool(active)) for name, created, active in found]

    def _segment(self, hash_: str) -> Path:
        return self.path / SEGMENTS / f"{hash_}.safetensors"


class _Draw:
    """Random numbers from 0 to 1 of one question, the same for the same seed and history."""

    def __init__(self, seed: int, annotator: str, earlier: int) -> None:
        data = hashlib.sha256(f"{seed}:{earlier}:{annotator}".encode()).digest()
        self.mirror, self.kind, self.own, self.pick = (
            int.from_bytes(data[at : at + 8]) / 2.0**64 for at in range(0, 32, 8)
        )


def check_name(name: str, where: str) -> str:
    """Return the name of a person; ValueError for an empty, a long or an unprintable one."""
    if not name.isprintable() or not NAME.fullmatch(name):
        raise ValueError(
            f"{where}: must be a name of 1 to 100 printable characters without spaces at its ends, "
            f"got {shortened(repr(name))}"
        )
    return name


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _question(query: Query, swapped: bool, reason: Purpose, until: float) -> Question:
    left, right = (query.right, query.left) if swapped else (query.left, query.right)
    return Question(query, left, right, reason, until)


def _check_active(db: sqlite3.Connection, name: str) -> None:
    if rows.active(db, name) is None:
        raise Refused(
            f"annotator: must have a token that is not revoked, got {shortened(repr(name))}"
        )


def _check_among(where: str, value: str, among: Sequence[str]) -> None:
    if value not in among:
        raise ValueError(f"{where}: must be one of {', '.join(among)}, got {value!r}")


def in_the_way(folder: Path) -> str:
    """Return the name of something in a folder that a new store may not lie beside; "" if there is
    nothing.

    A store that another process is creating, or was killed while creating, has empty segments.
    """
    names = [one.name for one in folder.iterdir() if not one.name.startswith(".")]
    segments = folder / SEGMENTS
    if names == [SEGMENTS] and segments.is_dir() and not any(segments.iterdir()):
        return ""
    return min(names, default="")
