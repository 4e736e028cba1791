"""Rows of pairs: which forms are read, and which are refused, with the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from equipoise.language import preferences, tasks
from equipoise.language.task_files import read

USER = {"role": "user", "content": "2 + 2?"}


def says(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def file_of(folder: Path, *rows: Any) -> Path:
    path = folder / "pairs.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.few(9)
@pytest.mark.parametrize(
    ("row", "prompt", "texts"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "a", ("b", "c")),
        ({"chosen": "It is 4.", "rejected": "It is 5."}, "It is", (" 4.", " 5.")),
        ({"prompt": [USER], "chosen": says("4"), "rejected": says("5")}, [USER], ("4", "5")),
        (
            {"chosen": [USER, *says("4")], "rejected": [USER, *says("5")]},
            [USER],
            ("4", "5"),
        ),
        (
            {"prompt": "2 + 2?", "chosen": [USER, *says("4")], "rejected": [USER, *says("5")]},
            [USER],
            ("4", "5"),
        ),
        (
            {
                "prompt": [USER, *says("It is ")],
                "chosen": says("It is 4"),
                "rejected": says("It is 5"),
            },
            [USER, *says("It is ")],
            ("4", "5"),
        ),
    ],
)
def test_a_pair_is_read(tmp_path: Path, row: Any, prompt: Any, texts: tuple[str, str]) -> None:
    (found,) = read(file_of(tmp_path, row), preferences.examples)
    assert (found.prompt, found.completion, found.columns["rejected"]) == (prompt, *texts)
    assert (found.columns["margin"], found.columns["tie"]) == (0.0, False)


@pytest.mark.few(20)
@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "must be two different completions"),
        ({"chosen": "b", "rejected": "c"}, "must have a prompt, or completions that begin"),
        ({"prompt": "", "chosen": "b", "rejected": "c"}, "prompt: expected a text or messages"),
        ({"prompt": "a", "chosen": "", "rejected": "c"}, "chosen: must be a text, got an empty"),
        ({"prompt": "a", "chosen": "b"}, "must have 'chosen' and 'rejected', or 'completion'"),
        ({"prompt": "a", "chosen": "b", "rejected": 3}, "rejected: must be a text or messages"),
        ({"prompt": "a", "chosen": "b", "rejected": says("c")}, "must be a text after a prompt"),
        (
            {
                "chosen": [USER, *says("4")],
                "rejected": [{"role": "user", "content": "3 + 3?"}, *says("5")],
            },
            "a pair has one prompt",
        ),
        (
            {"prompt": "else", "chosen": [USER, *says("4")], "rejected": [USER, *says("5")]},
            "must begin with the row's prompt, got another",
        ),
        (
            {
                "prompt": "2 + 2?",
                "chosen": [{"role": "system", "content": "Be short."}, USER, *says("4")],
                "rejected": [USER, *says("5")],
            },
            "got two prompts in 'chosen' and 'rejected'",
        ),
        ({"prompt": "a", "chosen": "b", "rejected": "c", "margin": "x"}, "margin: must be a num"),
        ({"prompt": "a", "chosen": "b", "rejected": "c", "tie": 1}, "tie: must be true or false"),
        (
            {"prompt": "a", "chosen": "b", "rejected": "c", "tie": True, "margin": 1},
            "margin: must be left out of a tie",
        ),
        ({"prompt": "a", "completion": "b", "label": 1}, "label: must be true or false"),
        ({"prompt": "a", "completion": "b", "label": True}, "must be a row like the first"),
        ([1], "must be an object with a pair, got list"),
    ],
)
def test_a_row_is_refused_with_its_line(tmp_path: Path, row: Any, sentence: str) -> None:
    good = {"prompt": "a", "chosen": "b", "rejected": "c"}
    with pytest.raises(ValueError, match="line 2") as refused:
        read(file_of(tmp_path, good, row), preferences.examples)
    assert sentence in str(refused.value)


def test_a_planted_leak_between_the_splits_is_found(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{n}", "chosen": "a", "rejected": "b"} for n in range(5)]
    train = file_of(tmp_path, *rows)
    held_out = tmp_path / "held.jsonl"
    held_out.write_text(json.dumps({"prompt": " q3 ", "chosen": "c", "rejected": "d"}))
    task = tasks.make(
        str(train), seed=0, arguments={"held_out": str(held_out)}, rows=preferences.examples
    )
    assert [one.prompt for one in task.train] == ["q0", "q1", "q2", "q4"]
    assert "1 of 5 rows" in task.notes[0] and "line 4 first" in task.notes[0]


def test_pairs_of_one_prompt_are_on_one_side(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{n % 20}", "chosen": f"a{n}", "rejected": f"b{n}"} for n in range(60)]
    task = tasks.make(str(file_of(tmp_path, *rows)), seed=0, rows=preferences.examples)
    asked = [{one.prompt for one in some} for some in (task.train, task.held_out)]
    assert len(asked[0]) == 18 and len(asked[1]) == 2 and not asked[0] & asked[1]


def test_a_pair_becomes_two_rows_with_labels(tmp_path: Path) -> None:
    row = {"prompt": "a", "chosen": "b", "rejected": "c"}
    both = preferences.unpaired(read(file_of(tmp_path, row), preferences.examples))
    assert [(one.completion, one.columns) for one in both] == [
        ("b", {"label": True}),
        ("c", {"label": False}),
    ]
    tied = read(file_of(tmp_path, row | {"tie": True}), preferences.examples)
    with pytest.raises(ValueError, match="line 1: must be no tie"):
        preferences.unpaired(tied)
