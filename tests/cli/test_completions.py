"""``equipoise runs show --completions``: a table of answers, whose texts nobody has checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.console.completions import lines
from equipoise.record.completions import write_completions

SAMPLES: list[dict[str, Any]] = [
    {
        "prompt": "2 + 2 =\n\x1b[31m\x07\u202e",
        "completion": "4" * 500,
        "reward": 1.5,
        "rewards": {"right": 1.0, "shor\x1bt": 0.25},
    },
    {"prompt": "3 + 3 =", "completion": "", "reward": None, "rewards": {"right": None}},
]


def typed(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["runs", "show", *words])
    return done.exit_code, done.output


def test_each_reward_function_has_a_column_and_texts_are_bounded() -> None:
    for width in (40, 80, 200, None):
        title, head, first, second = lines({"step": 1000, "samples": SAMPLES}, width)
        assert title == "evaluation at step 1,000: 2 of its answers"
        assert head.split() == ["prompt", "completion", "reward", "right", "shor\\x1bt"]
        assert first.split()[-3:] == ["1.5", "1", "0.25"]
        assert second.split()[-3:] == ["-"] * 3
        assert all(one.isprintable() for one in (head, first, second))
        assert "444... +4" in first or "444... +3" in first
        assert width in (None, 40) or len(first) <= width


@pytest.mark.parametrize("text", ["x" * 16, "x" * 17, "\x1b" * 100, "", "\t\t", "\U0001f600" * 99])
def test_odd_texts_stay_in_their_column(text: str) -> None:
    sample = {"prompt": text, "completion": text, "reward": 0.0}
    for line in lines({"step": 0, "samples": [sample]}, 45)[1:]:
        assert len(line) <= 45 and line.isprintable()


def test_the_command_prints_the_table(tmp_path: Path) -> None:
    code, said = typed(str(tmp_path), "--completions")
    assert code == 2 and "must be the directory of a run" in said
    (tmp_path / "run.json").write_text("{}")
    code, said = typed(str(tmp_path), "--completions")
    assert code == 2 and "without completions.json" in said
    write_completions(tmp_path, 1000, SAMPLES)
    code, said = typed(str(tmp_path), "--completions")
    assert code == 0 and "shor\\x1bt" in said and "\x1b" not in said and "\u202e" not in said
    code, said = typed(str(tmp_path), "--completions", "--json")
    assert code == 0 and json.loads(said)["samples"] == SAMPLES
    (tmp_path / "completions.json").write_text('{"step": 1, "samples": [{"prompt": 3}]}')
    code, said = typed(str(tmp_path), "--completions")
    assert code == 2 and "completions.json" in said
