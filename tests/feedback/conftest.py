"""Files are not synced: no test cuts the power, and a killed process loses nothing it wrote."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
