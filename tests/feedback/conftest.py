"""Files are not synced: no test cuts the power, and a killed process loses nothing it wrote. Every
store that a test leaves open is closed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from equipoise.feedback import store
from equipoise.feedback.database import Database


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    opened: list[Database] = []

    class Noted(Database):
        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            opened.append(self)

    monkeypatch.setattr(store, "Database", Noted)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    yield
    for one in opened:  # Python 3.13 warns of an open connection
        one.close()
