"""What ``edge.py`` costs is within what was asked for."""

from __future__ import annotations

import edge
import pytest


@pytest.mark.bench
@pytest.mark.parametrize("kind", edge.KINDS)
def test_edge_is_small_and_fast(kind: str) -> None:
    one = edge.measure(kind, calls=5_000, rounds=5)
    assert one["memory"] <= edge.WANTED["memory"] and one["time"] <= edge.WANTED["time"], one
