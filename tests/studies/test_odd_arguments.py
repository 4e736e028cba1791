"""Arguments of ``eq.tune`` that cannot be: refused before a study is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import equipoise as eq


@pytest.mark.few(9)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"executor": "moon"}, "executor: expected one of 'local', 'ray', got 'moon'"),
        ({"executor": None}, "executor: expected one of 'local', 'ray', got None"),
        ({"on": "moon"}, "on: "),
        ({"strategy": 5}, "strategy: expected a text, got 5"),
        ({"strategy": "os:system"}, "--trust os"),
        ({"jobs": True}, "jobs: "),
        ({"trials": 10**9}, "trials: expected 1 to 100000, got 1000000000"),
        ({"space": {"algorithm.gamma": []}}, "space: must be KEY="),
        ({"space": "algorithm.gamma=0.9..0.99"}, "must be a mapping"),
    ],
)
def test_an_odd_argument_leaves_no_study(options: Any, said: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"space": {"algorithm.gamma": "0.9..0.99"}, "progress": False}
    with pytest.raises((TypeError, ValueError), match=said):
        eq.tune("CartPole-v1", "ppo", out=tmp_path / "s", steps=1000, **given | options)
    assert not (tmp_path / "s").exists()
