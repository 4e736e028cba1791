"""A clock that jumps, back and forth by days: nothing waits for it, nothing is lost by it, and no
duration is negative.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.record.listing import row
from equipoise.record.live import read_live, state_of
from equipoise.registry import Registry, artifacts
from tests.registry.made import artifact

DAY_S = 86_400.0
JUMPS = (0.0, -400 * DAY_S, 30 * DAY_S, -1.0, 3_600.0, -DAY_S)


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock is another one at each look; the monotonic one is as ever."""
    real, jumps = time.time, itertools.cycle(JUMPS)
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    monkeypatch.setattr(time, "time_ns", lambda: int((real() + next(jumps)) * 1e9))


def test_a_run_goes_on_and_tells_true_durations(jumping: None, tmp_path: Path) -> None:
    began = time.monotonic()
    run = api.start(
        api.program("CartPole-v1", "ppo", steps=2_000, seed=0), out=tmp_path / "run", on="serial"
    )
    reports = list(run)
    took = time.monotonic() - began
    walls = [report.wall_s for report in reports]
    assert walls == sorted(walls) and walls[0] >= 0 and walls[-1] <= took
    summary: Any = run.summary
    assert 0 < summary["wall_s"] <= took and summary["steps_per_s"] > 0


def test_versions_keep_the_order_in_which_they_were_made(jumping: None, tmp_path: Path) -> None:
    to, versions = Registry(tmp_path / "registry", create=True), []
    for letter in "abcdef":
        artifact(tmp_path / letter, letter)
        to.add(tmp_path / letter, "cart")
        versions.append(artifacts.read_manifest(tmp_path / letter).version)
        to.alias("cart", "champion", versions[-1])
        assert to.aliases("cart")["champion"] == versions[-1]
    to.rollback("cart")
    assert to.aliases("cart")["champion"] == versions[-2] and to.verify() == []
    told = [one["version"] for one in to.audit("cart") if one["kind"] in ("champion", "rollback")]
    assert told == [*versions, versions[-2]], (
        "the audit has them in the order in which they were made"
    )


def test_a_live_run_is_running_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On its own machine a run is asked for by its process; elsewhere a file from the future is as
    good as a new one.
    """
    run = api.start(
        api.program("CartPole-v1", "ppo", steps=200_000, seed=0), out=tmp_path / "run", on="serial"
    )
    next(iter(run))
    told = read_live(tmp_path / "run")
    for jump in JUMPS:
        assert state_of(told, told["time"] + jump) == "running"
        assert row(tmp_path / "run").status == "running"
    elsewhere = {**told, "machine": "another"}
    assert (
        state_of(elsewhere, told["time"] - DAY_S) == "running"
        and state_of(elsewhere, told["time"] + DAY_S) == "killed"
    )
    run.close()
