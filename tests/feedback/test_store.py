"""The store: what goes in comes out once, questions are held for one person, and rows are never
changed.
"""

from __future__ import annotations

import errno
import os
import sqlite3

import numpy as np
import pytest

from equipoise.feedback import DiskFull, Plan, Refused, Store
from equipoise.feedback.formats import export_file
from tests.feedback.made import clips, store_with


def test_a_clip_comes_out_as_it_went_in(tmp_path):
    store = Store.create(tmp_path / "s")
    given = {
        "frames": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
        "obs": np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)[:, ::-1],
        "done": np.array([False, True]),
        "seed": np.array(7),
    }
    hash_ = store.add_segment(given)
    found = store.segment(hash_)
    for name, array in given.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    assert store.add_segment(given) == hash_ and len(list((store.path / "segments").iterdir())) == 1
    assert store.add_segment({**given, "seed": np.array(8)}) != hash_


def test_texts_and_chats_come_out_as_they_went_in(tmp_path):
    store = Store.create(tmp_path / "s")
    chat = [
        {"role": "user", "content": "Grüße?"},
        {"role": "assistant", "content": "x\u2028"},
    ]
    for text in ("a text", chat):
        assert store.text(store.add_text(text)) == text
    assert store.add_text("a text") == store.add_text("a text")
    assert store.add_text("a text") != store.add_text([{"role": "user", "content": "a text"}])


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, "must have 1 to 64 arrays"),
        ({"../x": np.zeros(1)}, "names of arrays"),
        ({"x": np.array([None])}, "must be an array of bools, integers or floats"),
        ({"x": np.array(["a"])}, "must be an array of bools, integers or floats"),
        ({"x": np.broadcast_to(np.float64(0), (1 << 23, 1))}, "must have at most"),
    ],
)
def test_arrays_that_are_no_clip_are_refused(tmp_path, arrays, words):
    store = Store.create(tmp_path / "s")
    with pytest.raises(ValueError, match=words):
        store.add_segment(arrays)
    assert list((store.path / "segments").iterdir()) == []


@pytest.mark.parametrize("text", ["", " \n", [], [{"role": "user"}], "\ud800", "x" * (1 << 20)])
def test_texts_that_are_empty_or_odd_are_refused(tmp_path, text):
    with pytest.raises(ValueError, match="text: must|text.0.: must"):
        Store.create(tmp_path / "s").add_text(text)


def test_queries_of_items_that_are_not_there_are_refused(tmp_path):
    store = Store.create(tmp_path / "s")
    one, two = clips(store, 2)
    text = store.add_text("hi")
    for kind, left, right, given, words in (
        ("clip", one, one, {}, "must differ"),
        ("clip", one, text, {}, "stored segment"),
        ("text", one, two, {}, "stored text"),
        ("clip", one, "../../etc/passwd", {}, "SHA-256"),
        ("clip", one, two, {"prompt": one}, "stored text"),
        ("clip", one, two, {"purpose": "gold"}, "gold"),
        ("clip", one, two, {"gold": "left"}, "gold"),
        ("clip", one, two, {"purpose": "repeat"}, "purpose"),
        ("clip", one, two, {"version": -1}, "version"),
        ("video", one, two, {}, "kind"),
    ):
        with pytest.raises(ValueError, match=words):
            store.add_query(kind, left, right, **given)
    assert store.queries() == []
    number = store.add_query("clip", one, two, prompt=text, purpose="newest", version=3, step=500)
    query = store.query(number)
    assert (query.version, query.step, query.purpose, query.prompt) == (3, 500, "newest", text)
    with pytest.raises(ValueError, match="number of a query"):
        store.query(99)


def test_a_choice_of_the_screen_becomes_a_choice_of_the_query(tmp_path):
    store, sides = store_with(tmp_path / "s", 40), []
    while (question := store.next_query("a")) is not None:
        query = question.query
        sides.append(question.left == query.left)
        assert {question.left, question.right} == {query.left, query.right}
        shown = "left" if question.left == query.right else "right"
        row = store.answer(query.id, "a", shown, 2.5)
        answer = store.answers()[-1]
        assert (answer.row, answer.choice, answer.swapped) == (row, "right", not sides[-1])
        assert (answer.latency_s, answer.repeat) == (2.5, False)
    assert len(sides) == 40 and 8 <= sum(sides) <= 32


def test_sides_are_drawn_half_and_half_and_by_the_seed(tmp_path):
    drawn = {}
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        store = store_with(tmp_path / name, 1, seed=seed, lease_s=1)
        drawn[name] = []
        for now in range(0, 800, 2):  # each lease has ended when the next question is asked for
            question = store.next_query("a", now)
            drawn[name].append(question.left == question.query.left)
    assert drawn["one"] == drawn["same"] != drawn["other"]
    assert 170 <= sum(drawn["one"]) <= 230


def test_a_query_is_held_for_one_person_and_given_to_the_next_when_the_lease_ends(tmp_path):
    store = store_with(tmp_path / "s", 1, lease_s=60)
    question = store.next_query("a", 1000)
    assert question.until == 1060
    assert store.next_query("a", 1059) == question and store.next_query("b", 1059) is None
    assert store.next_query("b", 1061).query == question.query
    with pytest.raises(Refused, match="somebody else got it"):
        store.answer(1, "a", "left", 1, 1062)
    store.answer(1, "b", "equal", 1, 1062)
    with pytest.raises(Refused, match="somebody else got it"):
        store.answer(1, "a", "left", 1, 1063)
    assert [one.annotator for one in store.answers()] == ["b"]
    assert store.next_query("a", 5000) is None and store.counts().open == 0


def test_an_expired_lease_counts_while_nobody_else_has_the_query(tmp_path):
    store = store_with(tmp_path / "s", 1, lease_s=60)
    store.next_query("a", 1000)
    store.answer(1, "a", "left", 1, 9000)
    assert len(store.answers()) == 1


def test_answers_that_nobody_asked_for_are_refused(tmp_path):
    store = store_with(tmp_path / "s", 2)
    with pytest.raises(Refused, match="must be held by a"):
        store.answer(1, "a", "left", 1)
    with pytest.raises(Refused, match="must have a token"):
        store.next_query("nobody")
    question = store.next_query("a")
    for choice, latency in (("up", 1), ("left", -1), ("left", float("nan")), ("left", 1e9)):
        with pytest.raises(ValueError, match="choice|latency_s"):
            store.answer(question.query.id, "a", choice, latency)
    store.answer(question.query.id, "a", "left", 1)
    with pytest.raises(Refused, match="has answered it"):
        store.answer(question.query.id, "a", "left", 1)
    held = store.next_query("a")
    store.revoke("a")
    with pytest.raises(Refused, match="must have a token"):
        store.answer(held.query.id, "a", "left", 1)
    assert len(store.answers()) == 1


def test_a_query_gets_its_answers_from_different_people(tmp_path):
    store = store_with(tmp_path / "s", 5, "abc", answers_per_query=2)
    for name in "abcabcabcabc":
        if (question := store.next_query(name)) is not None:
            store.answer(question.query.id, name, "left", 1)
    while question := store.next_query("b"):
        store.answer(question.query.id, "b", "left", 1)
    by = {}
    for answer in store.answers():
        by.setdefault(answer.query, []).append(answer.annotator)
    assert len(by) == 5 and all(len(set(names)) == len(names) == 2 for names in by.values())


def test_gold_and_repeated_questions_come_at_their_shares(tmp_path):
    store = store_with(
        tmp_path / "s", 300, "ab", gold_share=0.2, repeat_share=0.2, repeat_after=3, seed=5
    )
    one, two = clips(store, 2)
    golds = [
        store.add_query("clip", two, other, purpose="gold", gold="right")
        for other in [one, *clips(store, 90)[2:]]
    ]
    asked, seen = {"a": [], "b": []}, {"a": [], "b": []}
    turn = 0
    while question := store.next_query(name := "ab"[turn % 2]):
        turn += 1
        asked[name].append((question.query.id, question.reason))
        own = [number for number, _ in asked[name]].count(question.query.id)
        assert own == 1 or (question.reason == "repeat" and own == 2)
        store.answer(question.query.id, name, "left", 1)
        seen[name].append(own)
    reasons = [reason for some in asked.values() for _, reason in some]
    for reason in ("gold", "repeat"):
        assert 0.13 < reasons.count(reason) / len(reasons) < 0.27
    assert all(number in golds for some in asked.values() for number, r in some if r == "gold")
    repeats = [
        own for name in "ab" for own, (_, r) in zip(seen[name], asked[name]) if r == "repeat"
    ]
    assert 0.3 < repeats.count(2) / len(repeats) < 0.7  # to the same person, and to the other
    assert sum(one.repeat for one in store.answers()) == repeats.count(2)


def test_an_undone_answer_is_asked_again_and_a_reader_of_older_rows_still_gets_it(tmp_path):
    store = store_with(tmp_path / "s", 3)
    for choice in ("left", "right"):
        store.answer(store.next_query("a").query.id, "a", choice, 1)
    before = store.answers()
    row = store.last_row()
    waiting = store.next_query("a")
    question = store.undo("a")
    assert question.query.id == 2 and store.next_query("a") == question
    assert store.answers() == before[:1] and store.answers(upto=row) == before
    assert store.undone(after=row) == [before[1].row]
    again = store.answer(2, "a", "equal", 1)
    assert [one.row for one in store.answers()] == [1, again]
    assert store.answers(upto=row) == before and store.answers(after=row) == store.answers()[1:]
    assert not store.answers()[-1].repeat
    assert store.next_query("a") == waiting
    assert (store.counts().answers, store.counts().undone) == (2, 1)
    assert store.undo("a").query.id == 2 and store.undo("a").query.id == 1
    assert store.undo("a") is None and store.answers() == []


def test_rows_are_never_changed(tmp_path):
    store = store_with(tmp_path / "s", 2)
    store.answer(store.next_query("a").query.id, "a", "left", 1)
    store.revoke("b")
    store.add_text("hi")
    with sqlite3.connect(store.path / "feedback.sqlite") as db:
        for table in ("plan", "texts", "queries", "leases", "answers", "annotators", "revocations"):
            (column, *_), *_ = [row[1:] for row in db.execute(f"PRAGMA table_info({table})")]
            for act in (f"UPDATE {table} SET {column} = {column}", f"DELETE FROM {table}"):
                with pytest.raises(sqlite3.IntegrityError, match="never changed or removed"):
                    db.execute(act)
    db.close()


def test_tokens_are_kept_as_hashes(tmp_path):
    store = Store.create(tmp_path / "s")
    token = store.add_annotator("ann")
    assert store.annotator_of(token) == "ann" and store.annotator_of("x" * 32) is None
    assert store.annotator_of("\ud800") is None
    store.close()
    assert all(
        token.encode() not in path.read_bytes() for path in store.path.rglob("*") if path.is_file()
    )
    store = Store.open(tmp_path / "s")
    with pytest.raises(Refused, match="new or a revoked name"):
        store.add_annotator("ann")
    store.revoke("ann")
    assert store.annotator_of(token) is None
    with pytest.raises(Refused, match="not revoked"):
        store.revoke("ann")
    assert store.annotator_of(store.add_annotator("ann")) == "ann"
    assert [(one.name, one.active) for one in store.annotators()] == [("ann", True)]


@pytest.mark.parametrize("name", ["", " a", "a\n", "\x1b[2J", "x" * 101, "\ud800"])
def test_names_that_cannot_be_shown_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="annotator: must be a name"):
        Store.create(tmp_path / "s").add_annotator(name)


def test_two_openings_see_each_others_rows(tmp_path):
    store = store_with(tmp_path / "s", 1)
    with Store.open(store.path) as other:
        question = store.next_query("a")
        assert other.next_query("b") is None
        other.answer(question.query.id, "a", "left", 1)
        assert store.answers() == other.answers() != []


@pytest.mark.parametrize(
    "plan", [{"answers_per_query": 0}, {"gold_share": 0.6}, {"lease_s": float("nan")}, {"seed": -1}]
)
def test_odd_plans_are_refused(tmp_path, plan):
    with pytest.raises(ValueError, match="plan"):
        Store.create(tmp_path / "s", Plan(**plan))
    assert not (tmp_path / "s").exists()


def test_a_store_is_created_once(tmp_path):
    Store.create(tmp_path / "s")
    with pytest.raises(ValueError, match="must be a new or an empty folder"):
        Store.create(tmp_path / "s")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("x")
    with pytest.raises(ValueError, match="mine.txt"):
        Store.create(tmp_path / "other")


def test_a_clip_that_fits_no_more_leaves_nothing(tmp_path, monkeypatch):
    def full(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    store = Store.create(tmp_path / "s")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull, match="nothing was stored, since the disk is full"):
        store.add_segment({"x": np.zeros(3)})
    assert list((store.path / "segments").iterdir()) == []


def test_an_export_that_fits_no_more_is_one_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    def full(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    store = store_with(tmp_path / "s", 1)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull, match=r"out\.jsonl: nothing was stored, since the disk is full"):
        export_file(store, tmp_path / "out.jsonl", "trl")
    assert not (tmp_path / "out.jsonl").exists()


def test_a_full_disk_is_one_sentence_and_no_answer(tmp_path):
    store = store_with(tmp_path / "s", 3)
    question = store.next_query("a")
    with store._db.reading() as db:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
    store._db._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(DiskFull, match="nothing was stored, since the disk is full"):
        store.add_text("x" * 100_000)
    store._db._db.execute(f"PRAGMA max_page_count = {pages + 1000}")
    store.answer(question.query.id, "a", "left", 1)
    assert len(store.answers()) == 1


def test_a_creation_that_was_interrupted_or_is_another_process_s_goes_on(tmp_path, monkeypatch):
    place = tmp_path / "store"
    (place / "segments").mkdir(parents=True)  # what a creation has before its database
    Store.create(place).close()
    other, create = tmp_path / "other", Store.create

    def beaten(path):
        create(path).close()
        return create(path)

    monkeypatch.setattr(Store, "create", beaten)
    with Store.open_or_create(other) as store, Store.open_or_create(other):
        assert store.counts().answers == 0
    (tmp_path / "full" / "segments").mkdir(parents=True)
    (tmp_path / "full" / "segments" / "x").touch()
    with pytest.raises(ValueError, match="must be a new or an empty folder, got one with segments"):
        Store.open_or_create(tmp_path / "full")


@pytest.mark.parametrize("make", [Store.create, Store.open, Store.open_or_create])
def test_a_store_at_a_url_is_refused(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="s3://mine/store: must be a path on this machine"):
        make("s3://mine/store")
    assert not list(tmp_path.iterdir())
