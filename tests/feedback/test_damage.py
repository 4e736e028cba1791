"""A damaged store is named, a killed process loses no answer that was acknowledged, and of several
processes one gets a question.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from equipoise.feedback import Store
from tests.feedback.made import store_with

ROOT = Path(__file__).parents[2]


def lines(module, folder):
    """What a program of the tests prints, a JSON value a line."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.feedback.{module}", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.thorough
def test_a_kill_while_answering_loses_no_acknowledged_answer(tmp_path):
    found, acknowledged = lines("killing", tmp_path / "s"), set()
    assert len(found) == 20
    for one in found:
        assert (one["code"], one["whole"]) == (-9, "ok") and one["rows"]
        acknowledged |= set(one["rows"])
        there = Counter(one["kept"] + one["undone"])
        assert all(there[row] == 1 for row in acknowledged)
        # An answer may be on the disk without its acknowledgement: at most one for each kill.
        assert len(there) - len(acknowledged) <= len(found)
        assert one["last"] == len(one["kept"]) + 2 * len(one["undone"])


@pytest.mark.thorough
def test_of_eight_processes_one_gets_the_question_and_each_query_gets_its_answers(tmp_path):
    (found,) = lines("racing", tmp_path)
    assert sorted(found["held"]) == [0] * 7 + [1]
    assert found["codes"] == [0] * 16 and found["open"] == 0
    answers = Counter(query for query, _ in found["answers"])
    assert len(answers) == 40 and set(answers.values()) == {2}
    assert len({tuple(one) for one in found["answers"]}) == 80, "nobody answered a query twice"


def damaged(path, change):
    """A store whose database another program changed."""
    store_with(path, 2).close()
    with closing(sqlite3.connect(path / "feedback.sqlite")) as db:
        db.executescript(change)
    return path


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("PRAGMA user_version = 2", "must be a store of version 1, got 2; update Equipoise"),
        ("PRAGMA application_id = 1", "must be a feedback store, got another database"),
        ("DROP TRIGGER answers_no_delete", "changed by another program"),
        ("CREATE TABLE mine (x)", "changed by another program"),
        (
            "DROP TRIGGER plan_no_update; UPDATE plan SET json = '{}'; CREATE TRIGGER "
            "plan_no_update BEFORE UPDATE ON plan BEGIN SELECT RAISE(ABORT, 'rows of plan are "
            "never changed or removed'); END",
            "plan.answers_per_query: expected a value, got none",
        ),
    ],
    ids=["newer", "another", "no trigger", "more tables", "plan"],
)
def test_a_store_that_was_changed_is_refused(tmp_path, change, words):
    path = damaged(tmp_path / "s", change)
    with pytest.raises(ValueError, match=words):
        Store.open(path)


def test_a_folder_without_a_store_is_refused(tmp_path):
    for name, words in (("none", "got none"), (".", "got another folder")):
        with pytest.raises(ValueError, match=f"must be a feedback store, {words}"):
            Store.open(tmp_path / name)
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "feedback.sqlite").write_bytes(b"not a database, and long enough" * 100)
    with pytest.raises(ValueError, match=r"must be a whole database, got a damaged one"):
        Store.open(tmp_path / "s")
    (tmp_path / "s" / "feedback.sqlite").unlink()
    (tmp_path / "s" / "feedback.sqlite").mkdir()
    with pytest.raises(ValueError, match="expected a plain file"):
        Store.open(tmp_path / "s")


def refusal(path):
    """The error of reading everything in a store, or None."""
    try:
        with Store.open(path) as opened:
            opened.queries(), opened.answers(), opened.counts(), opened.annotators()
            opened.next_query("b")
    except ValueError as error:
        return str(error)
    return None


def test_every_page_of_the_database_may_be_damaged(tmp_path):
    """Overwrite each page in turn: opening and reading either works or is one sentence."""
    store = store_with(tmp_path / "s", 5)
    store.add_text("a text")
    store.answer(store.next_query("a").query.id, "a", "left", 1)
    store.close()
    whole = (tmp_path / "s" / "feedback.sqlite").read_bytes()
    size, refused = 4096, 0
    for page in range(len(whole) // size):
        copy = tmp_path / f"{page}"
        shutil.copytree(tmp_path / "s", copy)
        data = whole[: page * size] + b"\xa5" * size + whole[(page + 1) * size :]
        (copy / "feedback.sqlite").write_bytes(data)
        if (said := refusal(copy)) is not None:
            refused += 1
            assert said.startswith(str(copy))
    assert refused > 10


def test_a_damaged_or_missing_segment_is_named(tmp_path):
    store = store_with(tmp_path / "s", 1)
    hash_ = store.query(1).left
    path = store.path / "segments" / f"{hash_}.safetensors"
    data = path.read_bytes()
    for bad in (data[:-1] + b"\x01", data[:40], b""):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match="must have the SHA-256 of its name, got .*; it is"):
            store.segment(hash_)
    arrays = {"obs": store.segment(store.query(1).right)["obs"] - 1, "reward": [0.0] * 3}
    arrays["reward"] = store.segment(store.query(1).right)["reward"]
    assert store.add_segment(arrays) == hash_, "adding it again mends it"
    assert path.read_bytes() == data
    path.unlink()
    with pytest.raises(ValueError, match="expected a plain file, got none"):
        store.segment(hash_)
    with pytest.raises(ValueError, match="segment: must be a SHA-256"):
        store.segment("../feedback.sqlite")


def test_a_damaged_text_is_named(tmp_path):
    store = store_with(tmp_path / "s", 1)
    hash_ = store.add_text("a text")
    with store._db.writing() as db:
        db.execute("DROP TRIGGER texts_no_update")
        db.execute("UPDATE texts SET content = ?", (b'"another"',))
    with pytest.raises(ValueError, match=f"text {hash_[:12]} must have this SHA-256"):
        store.text(hash_)
    with pytest.raises(ValueError, match="must have the text 000000000000, got none"):
        store.text("0" * 64)


def test_a_store_that_is_opened_twice_here_loses_nothing_to_another_process(tmp_path):
    first = Store.create(tmp_path / "s")
    Store.open(tmp_path / "s")
    script = (
        "import sys; from equipoise.feedback import Store\n"
        "with Store.open(sys.argv[1]) as store: store.add_text('of another process')"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "s")], check=True)
    kept = first.add_text("written afterwards")
    assert Store.open(tmp_path / "s").text(kept) == "written afterwards"
    seen = (
        "import sys; from equipoise.feedback import Store\n"
        "with Store.open(sys.argv[1]) as store: store.text(sys.argv[2])"
    )
    subprocess.run([sys.executable, "-c", seen, str(tmp_path / "s"), kept], check=True)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_store_that_was_removed_while_open_acknowledges_nothing(tmp_path, replaced):
    with store_with(tmp_path / "store", 1) as store:
        store.add_annotator("ann")
        shutil.rmtree(store.path)
        if replaced:
            Store.create(store.path).close()
        with pytest.raises(OSError, match="nothing was stored, since the store was removed or"):
            store.next_query("ann")
