"""``make test-all ONE_IN=3``: three commits that follow each other run every case."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest


def run_at(commit: int, one_in: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What this commit runs of a test of ten cases, a quick test and nine thorough ones."""
    items: list[Any] = [Item(f"case[{n}]", callspec=None) for n in range(10)]
    items += [Item("quick"), *(Item(f"long {n}", thorough=True) for n in range(9))]
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    config: Any = SimpleNamespace(getoption=lambda name: one_in, hook=hook)
    monkeypatch.setattr(conftest, "number_of_commit", lambda: commit)
    conftest.pytest_collection_modifyitems(config, items)
    return [item.name for item in items]


class Item:
    def __init__(self, name: str, *, thorough: bool = False, **has: object) -> None:
        self.name, self.nodeid = name, f"tests/a.py::{name}"
        self.marks = {"thorough"} if thorough else set()
        vars(self).update(has)

    def get_closest_marker(self, name: str) -> object:
        return None if name == "few" else name in self.marks

    def add_marker(self, name: str) -> None:
        self.marks.add(name)


def test_three_commits_run_every_case(monkeypatch: pytest.MonkeyPatch) -> None:
    each = [run_at(commit, 3, monkeypatch) for commit in (7, 8, 9)]
    assert all({"case[0]", "case[9]", "quick"} <= set(one) and len(one) <= 9 for one in each)
    assert {name for one in each for name in one} == set(run_at(7, 1, monkeypatch))
    assert len(run_at(7, 1, monkeypatch)) == 20
