"""Curves: a file of reports is read on from where the last reading ended, whatever became of it
meanwhile.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from equipoise.balance.shares import STATES
from equipoise.watching import curves
from equipoise.watching.curves import Curves
from tests.report import made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return made.run(tmp_path / "run", reports=20, summary=False) / "metrics.jsonl"


def line(i: int) -> str:
    return json.dumps(made.line(i, random.Random(i))) + "\n"


def test_it_reads_on(file: Path) -> None:
    one = Curves(file)
    assert one.read() and one.rows == 20 and not one.read()
    text = line(21)
    with file.open("a") as out:
        out.write(text[:100])
        out.flush()
        assert not one.read() and one.rows == 20, "half a line is none"
        out.write(text[100:])
    assert one.read() and one.rows == 21 and one.curve("steps_per_s")[0][-1] == 21_000
    assert one.curve("evaluation")[0] == [5000, 10000, 15000, 20000]
    assert one.curve("return", "wall")[0][0] == 4.0, "the first reports have no return"
    assert (
        "learner/entropy" in one.names
        and "sampling/worked" not in one.names
        and one.curve("none") == ([], [])
    )


def test_a_resume_that_cuts_the_file_is_seen(file: Path) -> None:
    one = Curves(file)
    one.read()
    kept = file.read_text().splitlines(keepends=True)[:5]
    aside = file.with_name("aside")
    aside.write_text("".join(kept))
    aside.replace(file)
    assert one.read() and one.rows == 5
    file.write_text("".join(kept[:3]))
    assert one.read() and one.rows == 3
    file.unlink()
    assert not one.read()


@pytest.mark.parametrize(
    "bad", ["{", "nan", '"text"', "[]", "{}", '{"env_steps": -1}', "\xff", "x" * 1000, '{"a":' * 99]
)
def test_a_damaged_line_is_left_out(file: Path, bad: str) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:10]) + bad.encode("latin-1") + b"\n" + b"".join(lines[10:]))
    one = Curves(file)
    assert one.read() and one.rows == 20 and len(one.damaged) == 1
    assert f"{file}, line 11" in one.damaged[0], "each says where"


def test_a_line_that_never_ends_is_passed_over(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "LONGEST", 10_000)
    monkeypatch.setattr(curves, "PIECE", 4_000)
    with file.open("a") as out:
        out.write("x" * 50_000 + "\n" + line(21))
    one = Curves(file)
    assert one.read() and one.rows == 21 and one.damaged


def test_shares_are_stacked_at_the_same_places(file: Path) -> None:
    with file.open("a") as out:
        out.writelines(line(i) for i in range(21, 500))
    one = Curves(file)
    one.read()
    found = {state: one.curve(f"learning/{state}") for state in STATES}
    assert len({tuple(x) for x, _ in found.values()}) == 1
    for shares in zip(*(y for _, y in found.values())):
        assert sum(shares) == pytest.approx(1, abs=1e-3)
    assert len(one.curve("steps_per_s")[0]) <= curves.MOST_POINTS


def test_numbers_that_are_none_break_nothing(file: Path) -> None:
    said = made.line(21, random.Random(0)) | {
        "metrics": {"a": None, "b": "text", "c": 1},
        "balance": {"actor 0": {"side": "sampling"}},
    }
    with file.open("a") as out:
        out.write(json.dumps(said) + "\n")
    one = Curves(file)
    one.read()
    assert (
        one.curve("learner/c")[1] == [1.0]
        and one.curve("learner/b") == ([], [])
        and not one.damaged
    )
