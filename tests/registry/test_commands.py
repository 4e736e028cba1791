"""``equipoise registry``: what each command prints, its JSON, its exit codes, and what a shell
completes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis.strategies import text
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.console.place import printable
from equipoise.registry import Registry
from tests.registry.made import artifact
from tests.serving.broken import broken


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a command of the registry where it is made -> (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    # these have no policy in them
    monkeypatch.setattr("equipoise.serving.trial.Trial.__call__", lambda *_: None)
    for letter in "abc":
        artifact(tmp_path / letter, letter, {"run": "runs/x", "evaluation": {"mean": 475.0}})

    def invoke(*words, expected=0):
        done = CliRunner().invoke(app, ["registry", *words])
        assert done.exit_code == expected, done.output
        return done.stdout if expected == 0 else done.stderr

    return invoke


def version(said: str) -> str:
    return json.loads(said)["version"]


def test_from_an_artifact_to_a_rollback(run):
    a = version(run("add", "a", "cart", "--alias", "champion", "--json"))
    b = version(run("add", "b", "cart", "--json"))
    assert run("add", "b", "cart") == f"cart {b[:12]}: added\n"
    assert (
        run("alias", "cart", "champion", b[:8], "--expect", a[:6], "--reason", "better")
        == f"cart {b[:12]}: champion now\n"
    )
    assert run("list") == (
        "name  versions      champion  candidate  shadow      previous    kind\n"
        f"cart         2  {b[:12]}          -       -  {a[:12]}  policy\n"
    )
    shown = run("show", "cart").splitlines()
    assert shown[:3] == [
        "cart: 2 versions, the newest first",
        f"  {b[:12]}  champion",
        f"  {a[:12]}  previous",
    ]
    assert re.fullmatch(
        rf"  \d{{4}}-\d\d-\d\d \d\d:\d\d  champion {b[:12]}  \S+@\S+ better", shown[-1]
    )
    assert '  evaluation: {"mean": 475.0}' in run("show", "cart", "champion").splitlines()
    assert run("rollback", "cart", "--expect", "champion") == f"cart {a[:12]}: champion again\n"
    assert run("alias", "cart", "shadow", "champion") == f"cart {a[:12]}: shadow now\n"
    assert run("alias", "cart", "shadow", "none") == "cart: no shadow now\n"
    assert run("verify") == "every file is as it was written\n"


def test_json_says_all(run):
    a = version(run("add", "a", "cart", "--alias", "champion", "--json"))
    assert json.loads(run("list", "--json"))["cart"]["aliases"] == {"champion": a}
    shown = json.loads(run("show", "cart", "--json"))
    assert (shown["versions"], shown["conflicts"]) == ([a], {}) and [
        one["kind"] for one in shown["audit"]
    ] == [
        "added",
        "champion",
    ]
    assert json.loads(run("show", "cart", "champion", "--json")) == Registry("registry").show(
        "cart"
    )
    assert json.loads(run("verify", "--json")) == {"problems": [], "conflicts": {}}
    assert json.loads(run("gc", "--dry", "--json")) == {"dry": True, "versions": []}


def test_a_lost_race_and_damage_have_exit_code_1_and_what_cannot_be_2(run, tmp_path):
    a = version(run("add", "a", "cart", "--alias", "champion", "--json"))
    assert run("alias", "cart", "champion", a, "--expect", "none", expected=1).startswith(
        "equipoise registry alias: champion of cart: expected champion at no version, got "
        f"{a[:12]}: it was moved meanwhile"
    )
    assert "unknown policy 'cort'; did you mean 'cart'" in run("rollback", "cort", expected=2)
    assert "expected a registry, got nothing" in run("list", "--registry", "elsewhere", expected=2)
    assert "unknown alias 'champio'; did you mean 'champion'" in run(
        "alias", "cart", "champio", a, expected=2
    )
    assert (
        "unknown alias" in run("add", "b", "cart", "--alias", "champio", expected=2)
        and run("list").split()[8] == "1"
    )
    file = tmp_path / "registry" / "artifacts" / a / "edge.py"
    file.write_bytes(b"# EDGE\n")
    run("verify", expected=1)
    problems = json.loads(CliRunner().invoke(app, ["registry", "verify", "--json"]).stdout)[
        "problems"
    ]
    assert len(problems) == 1 and f"artifacts/{a}/edge.py: expected the SHA-256" in problems[0]


def test_gc_asks(run):
    for letter in "ab":
        run("add", letter, "cart")
    assert run("gc") == "0 versions removed\n", "all are young"
    assert "expected --yes, since there is nobody to ask" in run(
        "gc", "--older-than", "0", expected=2
    )
    assert "--older-than: expected" in run("gc", "--older-than", "-1", expected=2)
    assert run("gc", "--older-than", "0", "--dry").endswith("2 versions would be removed\n")
    assert run("gc", "--older-than", "0", "--yes").endswith("2 versions removed\n")
    assert run("gc", "--older-than", "0", "--yes") == "0 versions removed\n"


def test_two_copies_that_were_both_moved_are_noted(run, tmp_path):
    run("add", "a", "cart")
    subprocess.run(["cp", "-r", "registry", "copy"], check=True)
    b = version(run("add", "b", "cart", "--alias", "champion", "--json"))
    c = version(run("add", "c", "cart", "--alias", "champion", "--json", "--registry", "copy"))
    subprocess.run(["cp", "-r", "copy/.", "registry"], check=True)
    said = run("verify")
    assert (
        f"champion of cart was moved in two copies of this registry, to {b[:12]} and to {c[:12]}"
        in said.replace("\n  ", " ")
    )


def test_what_others_wrote_moves_no_terminal(run):
    run("add", "a", "cart", "--reason", "\x1b[2Jgone")
    assert "\x1b" not in run("show", "cart") and "\x1b" not in run(
        "show", "cart", Registry("registry").versions("cart")[0]
    )


FORGED = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\x1b\u202e\u2066\x00\ud800"


def test_no_text_of_others_begins_a_line_or_turns_one(run, tmp_path, monkeypatch):
    line = "  2026-11-28 09:00  champion 000000000000  boss@prod approved"
    monkeypatch.setattr("equipoise.registry.records.check_letters", lambda *_: None)
    artifact(tmp_path / "d", "d", {f"run{end}{line}": f"x{end}{line}" for end in FORGED})
    to = Registry("registry", create=True)
    version = to.add(
        tmp_path / "d",
        "cart",
        reason="".join(f"ok{end}{line}" for end in FORGED),
        who=f"me\n{line}",
    )
    for which, count in (((), 4), ((version,), 10 + len(FORGED))):
        shown = run("show", "cart", *which)
        lines = shown.splitlines()
        assert len(lines) == count and line not in lines and not set(FORGED[1:]) & set(shown)


@given(text())
def test_what_is_printable_is_one_line_of_letters(said):
    shown = printable(said)
    assert (
        len(shown.splitlines()) <= 1
        and shown.replace("\t", "").isprintable()
        and shown.encode() is not None
    )
    assert printable(shown) == shown
    ours = printable(said, lines=True)
    assert ours.replace("\t", "").replace("\n", "").isprintable()


def test_a_graph_that_cannot_be_run_is_not_added(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    broken(tmp_path / "bad", "wrong shape")
    done = CliRunner().invoke(app, ["registry", "add", "bad", "cart", "--alias", "candidate"])
    assert done.exit_code == 2 and "Reshape" in done.stderr and done.stderr.count("\n") == 1
    assert not Registry("registry").names() and not os.listdir("registry/artifacts")


def completed(words: str, folder: Path) -> list[str]:
    """What a shell is told after these words."""
    done = subprocess.run(
        [sys.executable, "-m", "equipoise"],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        timeout=60,
        env=os.environ
        | {
            "_EQUIPOISE_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": f"{words.count(' ')}",
        },
    )
    return done.stdout.split()


@pytest.mark.thorough
def test_a_shell_completes_policies_versions_and_aliases(run, tmp_path):
    a = version(run("add", "a", "cart", "--alias", "champion", "--json"))
    run("add", "b", "pole")
    assert completed("equipoise registry rollback ", tmp_path) == ["cart", "pole"]
    assert completed(f"equipoise registry alias cart champion {a[:3]}", tmp_path) == [a[:12]]
    assert completed("equipoise registry alias cart sh", tmp_path) == ["shadow"]
