"""A machine that has fewer cores than the learners compute with threads."""

from __future__ import annotations

import pytest

from equipoise.nets import threads


@pytest.mark.parametrize(
    ("learners", "each", "remedy"),
    [
        (1, 1, ""),
        (2, 1, ""),
        (1, 2, ""),
        (1, 4, "--threads 2"),
        (2, 2, "--threads 1"),
        (4, 1, "--learners 2"),
        (4, 4, "--threads 1"),
    ],
)
def test_threads_that_have_no_core_are_warned_of(
    learners: int, each: int, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "usable", lambda: 2)
    warnings = threads.crowded(learners, each)
    assert len(warnings) == bool(remedy)
    for warning in warnings:
        assert (
            warning.startswith("warning: ")
            and warning.endswith(f"use {remedy}")
            and f"{learners * each} threads" in warning
        )
