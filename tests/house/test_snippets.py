"""What the documents show of Equipoise's Python works: their ``python`` blocks run, one after the
other, in one namespace.

Runs are made small: serial, two updates, evaluations of two episodes. A block that begins with a
file's name becomes that file. Blocks of other libraries have their name behind ``python`` and are
not run.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.api import training
from equipoise.plans.beginning import Resumed
from equipoise.programs.fields import alter
from equipoise.record.directory import RunDirectory
from equipoise.run.run import Run

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = {
    "guides/watching.md": 1,
    "start/coming-from/stable-baselines3.md": 3,
    "start/coming-from/rllib.md": 2,
    "start/coming-from/sample-factory.md": 2,
    "start/coming-from/pufferlib.md": 1,
    "start/first-run-python.md": 7,
    "guides/faq.md": 28,
    "guides/studies.md": 2,
    "guides/strategies.md": 2,
    "start/coming-from/ray-tune.md": 1,
}


def small(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Whatever is trained is short; the programs that were asked for."""
    programs: list[Any] = []

    class Small(Run):
        def __init__(self, program: Any, beginning: Any, services: Any) -> None:
            programs.append(program)
            steps = 2 * program.policies["main"].unroll * program.policies["main"].batch
            if isinstance(beginning, Resumed):
                steps += beginning.directory.program.schedule.steps
            every = None if program.evaluation.every is None else 1
            short = alter(program, steps=steps, evaluate_episodes=2, evaluate_every=every)
            super().__init__(short, beginning, replace(services, on="serial"))

    monkeypatch.setattr(training, "Run", Small)
    evaluate = api.evaluate
    monkeypatch.setattr(
        api,
        "evaluate",
        lambda directory, *, episodes=2, **options: evaluate(directory, episodes=2, **options),
    )
    return programs


@pytest.mark.few(1)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES)
def test_the_snippets_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.syspath_prepend(tmp_path)
    small(monkeypatch)
    blocks = BLOCK.findall((DOCS / page).read_text())
    assert len(blocks) == PAGES[page]
    namespace: dict[str, Any] = {"__name__": "snippet"}
    for number, block in enumerate(blocks):
        first = block.split("\n", 1)[0]
        if first.startswith("# ") and first.endswith(".py"):
            (tmp_path / first[2:]).write_text(block)
            continue
        exec(compile(block, f"{page}, block {number + 1}", "exec"), namespace)
    runs = [*(tmp_path / "runs").glob("*"), *(tmp_path / "studies").glob("*/trials/*/")]
    assert runs, "something was trained"
    assert all(run.summary() is not None for run in map(RunDirectory.open, runs))
    sys.modules.pop("my_envs", None)
