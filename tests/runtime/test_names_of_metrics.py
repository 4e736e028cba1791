"""The table of names of metrics, next to those of TRL and verl, has names that a run writes."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest

from equipoise.algorithms import _text
from tests.serving.test_chat_run import trained

PAGE = Path(__file__).parents[2] / "docs" / "start" / "coming-from" / "trl.md"


@pytest.mark.thorough
def test_the_names_are_those_of_a_run(tmp_path: Path) -> None:
    table = PAGE.read_text().partition("## Names of metrics")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall("`([^`]+)`", row)}
    run = trained(
        tmp_path / "run",
        algorithm="grpo",
        batch=16,
        evaluate_episodes=2,
        settings={"algorithm.beta": 0.01},
    )
    report = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    known = {*report, *report["metrics"], *report["evaluation"]["info"]}
    # of runs whose generators and learner are compared
    gate = {name for name in named if f'"{name}"' in inspect.getsource(_text)}
    assert len(named) > 10 and named <= known | gate, named - known - gate
