"""A tiny trained run that the tests of this folder share, and the words of a small run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import equipoise as eq

SMALL: dict[str, Any] = {
    "on": "serial",
    "steps": 2_048,
    "evaluate_episodes": 0,
    "progress": False,
}


@pytest.fixture
def small(tmp_path: Path) -> dict[str, Any]:
    """The options of a run of four updates in this process, in a directory of its own."""
    return {**SMALL, "out": tmp_path / "run"}


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> eq.Result:
    """A run that has ended, which tests read and do not change."""
    return eq.train("CartPole-v1", **SMALL, out=tmp_path_factory.mktemp("trained") / "run")
