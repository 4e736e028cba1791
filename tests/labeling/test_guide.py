"""The guide of the page: its commands print what it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.feedback import Store

PAGE = Path(__file__).parents[2] / "docs/guides/labeling.md"


def run(line: str) -> str:
    done = CliRunner().invoke(app, shlex.split(line)[1:])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.thorough
def test_texts_are_compared_and_learned_from_as_the_guide_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    part = PAGE.read_text().partition("## Compare texts")[2].partition("\n## ")[0]
    tasks, asked, learned = re.findall(r"^```(?:json)?\n(.*?)^```$", part, re.DOTALL | re.MULTILINE)
    Path("tasks.json").write_text(tasks)
    importing, printed, _ = asked.splitlines()
    assert run(importing.removeprefix("$ ")) == f"{printed}\n"
    with Store("answers") as store:  # by keys
        store.add_annotator("ann")
        while (question := store.next_query("ann")) is not None:
            store.answer(question.query.id, "ann", "left", latency_s=1.0)
    exporting, printed, *training = learned.splitlines()
    assert run(exporting.removeprefix("$ ")) == f"{printed}\n"
    assert len(training) == 2
    for number, line in enumerate(training):
        run(f"{line.removeprefix('$ ')} --steps 4 --batch 2 --on serial --out run-{number}")
        assert Path(f"run-{number}/summary.json").exists()
