"""The page about tasks and rewards: what it shows is what happens."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs/guides/text-tasks.md"
BLOCK = re.compile(r"^```python\n(.*?)^```\n\n```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^\$ cat (\S+)\n(.*?)(?=^\$|\Z)", re.MULTILINE | re.DOTALL)


def check_printed(blocks: list[tuple[str, str]], names: dict[str, Any]) -> None:
    """Run the blocks of a page one after the other; each prints what the page shows."""
    for code, printed in blocks:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(code, "a page", "exec"), names)
        assert said.getvalue() == printed


def test_the_page_shows_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    text = PAGE.read_text()
    files = FILE.findall(text.split("```")[1])
    assert len(files) == 2
    for name, inside in files:
        (tmp_path / name).write_text(inside)
    blocks, names = BLOCK.findall(text), dict[str, Any]()
    assert len(blocks) == 2
    check_printed(blocks, names)
    sys.modules.pop("my_rewards")


def test_the_page_of_conversations_shows_what_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    page = PAGE.with_name("conversations.md")
    text, names = page.read_text(), dict[str, Any]()
    ((name, inside),) = re.findall(r"^\$ cat (\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / name).write_text(inside)
    blocks = BLOCK.findall(text)
    assert len(blocks) == 2
    check_printed(blocks, names)
    sys.modules.pop("my_partner")
