"""``equipoise feedback``: what each command prints, and its exit codes."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.feedback import Store
from tests.feedback.made import store_with

PAIR = {"prompt": "The sky is", "chosen": " blue.", "rejected": " green.", "annotator": "ann"}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a command where the test's files are -> what it prints."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.jsonl").write_text(json.dumps(PAIR) + "\n")

    def invoke(*words, expected=0):
        done = CliRunner().invoke(app, ["feedback", *words])
        assert done.exit_code == expected, done.output
        return done.stdout if expected == 0 else done.stderr

    return invoke


def test_from_an_import_to_an_export(run, tmp_path):
    assert run("import", "s", "pairs.jsonl") == "s: 1 new queries, 1 new answers\n"
    assert run("import", "s", "pairs.jsonl") == "s: 0 new queries, 0 new answers\n"
    token = run("annotator", "s", "ben").strip()
    assert re.fullmatch(r"[\w-]{32}", token)
    with Store.open("s") as store:
        assert store.annotator_of(token) == "ben"
    shown = run("s").splitlines()
    assert shown[:2] == ["queries    1: 1 import; 0 open", "answers    1, and 0 undone"]
    assert shown[2].startswith("agreement  alpha - nominal")
    assert [line.split()[0] for line in shown[3:]] == ["annotator", "ben", "ann"]
    assert shown[-1].endswith("imported") and shown[-2].endswith("active")
    assert run("revoke", "s", "ben") == "ben: revoked\n"
    assert "revoked" in run("show", "s")
    said = json.loads(run("s", "--json"))
    assert (said["queries"], said["last_row"]) == ({"import": 1}, 1)
    assert said["agreement"]["annotators"]["ann"]["answers"] == 1
    assert token not in json.dumps(said)
    assert run("export", "s", "out.jsonl") == "out.jsonl: 1 answers\n"
    (line,) = (tmp_path / "out.jsonl").read_text().splitlines()
    assert {key: json.loads(line)[key] for key in PAIR} == PAIR


def test_a_spammer_and_answers_that_are_left_out_are_shown(run, tmp_path):
    store = store_with(tmp_path / "s", 40, "abc", answers_per_query=3)
    for name in "abc":
        while (question := store.next_query(name)) is not None:
            right = question.left == question.query.left
            choice = "left" if right == bool(question.query.id % 2) or name == "c" else "right"
            store.answer(question.query.id, name, choice, 1)
    store.close()
    spammers = [line for line in run("s").splitlines() if line.endswith("spammer")]
    assert [line.split()[0] for line in spammers] == ["c"]
    assert run("export", "s", "out.json", "--format", "label-studio").splitlines() == [
        "out.json: 0 answers, 120 left out",
        "left out: answers about clips, and answers without a form in this format",
    ]


def test_wrong_input_is_one_sentence(run, tmp_path):
    (tmp_path / "bad.jsonl").write_text(json.dumps(PAIR) + "\n{}\n")
    said = run("import", "s", "bad.jsonl", expected=2)
    assert "bad.jsonl, line 2: must have the key chosen, got {}" in said
    assert not (tmp_path / "s").exists(), "a wrong file creates no store"
    assert "must be a feedback store, got none" in run("s", expected=2)
    run("import", "s", "pairs.jsonl")
    assert "format: must be one of" in run("export", "s", "x", "--format", "csv", expected=2)
    assert "must have a token" in run("revoke", "s", "ben", expected=2)
    assert "must be a name of 1 to 100" in run("annotator", "s", " ", expected=2)


def test_an_empty_argument_is_named_as_the_help_names_it(tmp_path):
    done = CliRunner().invoke(app, ["feedback", "annotator", str(tmp_path), ""])
    assert done.exit_code == 2 and "NAME: must not be empty" in done.output
