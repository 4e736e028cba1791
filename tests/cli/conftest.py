"""What the tests of commands share."""

from __future__ import annotations

import pytest

from equipoise.balance import calibrate


@pytest.fixture(autouse=True)
def cores_of_others_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short runs of tests may have had few cores, by whatever else runs here: what is said of that
    has tests of its own.
    """
    monkeypatch.setattr(calibrate, "MISSING", float("inf"))
