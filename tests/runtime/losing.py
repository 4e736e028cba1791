"""A run on text that loses a machine of generators and is asked to leave another: the learner's
pause, and what became of every row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.plans.blueprint import Blueprint
from equipoise.runtime.messages import Note
from tests.runtime.machines import blue_of, finish

PAUSE_S = 2.0  # the learner's longest, by the issue 'Language models that people use'
SITES: Mapping[str, Sequence[str]] = {
    "site 0": ["generator 2"],
    "site 1": ["generator 3"],
}


class Pause:
    """The learner's longest time without a new version, from the first call of ``look`` on."""

    def __init__(self) -> None:
        self._version, self._at, self.longest_s = -1, 0.0, 0.0

    def look(self, version: int) -> None:
        now = time.monotonic()
        if self._version >= 0:
            self.longest_s = max(self.longest_s, now - self._at)
        if version != self._version:
            self._version, self._at = version, now


def endless(folder: Path, **options: Any) -> Blueprint:
    """Four generators, on devices that this machine does not have."""
    given: dict[str, Any] = {
        "actors": 4,
        "envs_per_actor": 8,
        "unroll": 1,
        "batch": 32,
        "max_lag": 3,
        "steps": 10_000_000,
        "recipe": True,
        "settings": ["source.samples_at_once=32", "source.engine=sim:step_s=0.02,median=6"],
    }
    return blue_of(folder, "sort", "grpo", **given | options)


def loses(
    runtime: Any, kill: Callable[[str], object], drain: Callable[[str], object]
) -> tuple[Any, Pause, list[str]]:
    """Kill the machine of site 0 and drain that of site 1, and go on until the work of both goes on
    elsewhere -> the last statistics, the learner's pause since the first loss, notes.
    """
    pause, notes, before = Pause(), list[str](), dict[str, int]()

    def each(messages: Any) -> None:
        notes.extend(message.text for message in messages if isinstance(message, Note))
        now = runtime.stats()
        if not before and now.version >= 20 and min(now.ticks) > 2:
            before["killed"] = now.ticks[2]
            kill("site 0")
        if before:
            pause.look(now.version)
        back = now.sites["site 0"].reached and now.sites["site 0"].lost == 1
        if "killed" in before and "drained" not in before and back:
            before["drained"] = now.ticks[3]
            drain("site 1")

    def over() -> bool:
        now = runtime.stats()
        return (
            "drained" in before
            and now.sites["site 1"].moved == 1
            and now.sites["site 1"].reached
            and now.ticks[2] > before["killed"]
            and now.ticks[3] > before["drained"] + 1
        )

    _, stats = finish(runtime, each, over)
    return stats, pause, notes


def check(stats: Any, pause: Pause, notes: Sequence[str]) -> None:
    """Check that every row is accounted for and that no generator made the learner wait."""
    rows = stats.rows
    assert rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"], rows
    sites = stats.sites
    assert [(one.lost, one.moved) for one in sites.values()] == [(1, 0), (0, 1)], notes
    assert 0.0 < pause.longest_s <= PAUSE_S, (pause.longest_s, notes)
