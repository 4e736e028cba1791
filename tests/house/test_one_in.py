"""``make test-all ONE_IN=3``: three commits that follow each other run every case."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest


def run_at(commit: int, one_in: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The cases of a test of ten that this commit runs."""
    items: list[Any] = [Item(n) for n in range(10)]
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    config: Any = SimpleNamespace(getoption=lambda name: one_in, hook=hook)
    monkeypatch.setattr(conftest, "number_of_commit", lambda: commit)
    conftest.pytest_collection_modifyitems(config, items)
    return [item.case for item in items]


class Item:
    def __init__(self, case: int) -> None:
        self.case, self.nodeid, self.callspec = case, f"tests/a.py::test[{case}]", None

    def get_closest_marker(self, name: str) -> None: ...

    def add_marker(self, name: str) -> None: ...


def test_three_commits_run_every_case(monkeypatch: pytest.MonkeyPatch) -> None:
    each = [run_at(commit, 3, monkeypatch) for commit in (7, 8, 9)]
    assert all({0, 9} <= set(one) and len(one) <= 5 for one in each), "the first, the last, a third"
    assert sorted({case for one in each for case in one}) == list(range(10))
    assert run_at(7, 1, monkeypatch) == list(range(10))
