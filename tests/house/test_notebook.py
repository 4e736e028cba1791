"""The notebook of docs/ runs, is the one that its tool makes, and shows the run in one place."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import notebook
import pytest

import equipoise as eq
from equipoise.console.notebook import NotebookView
from equipoise.console.place import in_notebook


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_it_runs_on_processes(tmp_path: Path) -> None:
    made = notebook.executed(tmp_path)
    outputs = [cell.get("outputs", []) for cell in made.cells]
    assert not [
        one
        for some in outputs
        for one in some
        if one.output_type in ("error", "stream") and "Traceback" in str(one)
    ]
    picture, result = outputs[3]
    assert "<svg" in result.data["text/html"] and "<Result completed" in result.data["text/plain"]
    assert (
        picture.output_type == "display_data"
        and "Completed: all steps are done." in picture.data["text/html"]
    )
    assert "<svg" in outputs[4][0].data["image/svg+xml"]
    assert outputs[6][0].text.startswith("at the end of the corridor after 10 steps")


def test_the_page_is_what_the_tool_writes() -> None:
    """``python tools/notebook.py`` writes it anew."""
    cells = json.loads(notebook.FILE.read_text(encoding="utf-8"))["cells"]
    written = [
        (
            cell["cell_type"],
            cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"]),
        )
        for cell in cells
    ]
    assert written == notebook.CELLS
    assert all(cell["outputs"] for cell in cells[3:5])


class Cell:
    """Stands in for the output of a cell."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, html: str, display_id: bool) -> Any:
        assert not self.shown and display_id
        self.shown.append(html)
        return SimpleNamespace(update=self.shown.append)


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    made = Cell()
    kernel = type("ZMQInteractiveShell", (), {})()
    ipython = SimpleNamespace(
        get_ipython=lambda: kernel, display=SimpleNamespace(HTML=str, display=made.display)
    )
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    return made


def test_a_run_is_one_picture_that_is_drawn_anew(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.console.notebook.REDRAW_S", 0.0)
    assert in_notebook()
    result = eq.train(
        "CartPole-v1", on="serial", out=tmp_path / "run", steps=2000, evaluate_episodes=1
    )
    assert result.status == "completed" and len(cell.shown) > 2
    assert "learner" in cell.shown[0] and "Completed: all steps are done." in cell.shown[-1]
    assert all(text.startswith("<pre ") for text in cell.shown)


def test_the_stop_button_saves_the_run(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: NotebookView, report: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(NotebookView, "update", stop)
    result = eq.train("CartPole-v1", on="serial", out=tmp_path / "run", steps=100_000_000)
    assert result.status == "interrupted" and "Interrupted" in cell.shown[-1]


def test_elsewhere_the_view_is_the_terminals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not in_notebook()
    eq.train("CartPole-v1", on="serial", out=tmp_path / "run", steps=2000, evaluate_episodes=0)
    assert "Completed: all steps are done." in capsys.readouterr().out
