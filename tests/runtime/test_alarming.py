"""Whose memory is watched: that of workers that are under way."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from equipoise.balance.shares import Shares
from equipoise.record.report import Report
from equipoise.run import alarming
from equipoise.runtime.stats import RunStats
from equipoise.runtime.usage import DRIVER, Usage
from tests.cli.samples import report


def stats(done: float, phases: dict[str, str], side: Any = "learning") -> RunStats:
    given: dict[str, Any] = {one.name: {} for one in fields(RunStats) if one.name != "first"}
    usage = {name: Usage(cpu_s=1.0, rss=9, own=5) for name in ("learner", DRIVER)}
    return RunStats(
        **given
        | {
            "version": 1,
            "workers": {"learner": Shares(done=done, side=side)},
            "phases": phases,
            "usage": usage,
        }
    )


@pytest.mark.parametrize(
    ("done", "phases", "watched"),
    [
        (0, {"learner": "making the envs"}, False),
        (0, {}, False),  # it is built, and compiles at its first update
        (2, {}, False),
        (3, {}, True),
        (900, {"learner": "compiling"}, False),
        (900, {}, True),
    ],
)
def test_a_worker_is_watched_once_it_is_under_way(
    done: float, phases: dict[str, str], watched: bool
) -> None:
    told: Report = report()
    moment = alarming.moment(told, stats(done, phases))
    assert moment.memory == ({"learner": 5.0} if watched else {})


def test_a_worker_beside_the_ring_has_no_pieces_of_work() -> None:
    assert alarming.moment(report(), stats(0, {}, side="beside")).memory == {"learner": 5.0}
