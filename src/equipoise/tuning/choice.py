"""A choice: its record in ``run.json`` under ``choices``, and the part that a resume keeps.

How actors act is chosen in ``forward.py``, the settings that may be ``auto`` in ``choices.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise.files import LARGEST_JSON, parse_json, read_bounded
from equipoise.record.schemas import RUN_SCHEMA
from equipoise.schema import check

Known = Mapping[str, Any]  # choices as run.json has them
KEY = "choices"  # of run.json: {name: a ``Choice`` as JSON}
# the name of the choice of how actors act; of several policies ``forward.POLICY``
FORWARD = "forward"
ASKS_AGAIN = {
    FORWARD: ("placement.precision", "placement.acting_precision", "placement.compile"),
    "precision": ("placement.device", "placement.compile", "placement.learners"),
    "threads": (
        "placement.device",
        "placement.compile",
        "placement.learners",
        "placement.precision",
    ),
}  # a resume that changes one of these settings makes the choice again


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    value: Any
    why: str
    # the measurements, by value or combination
    measured: Mapping[str, float] = field(default_factory=dict)
    unit: str = ""  # of what was measured
    left_out: Sequence[str] = ()  # values that there was no time to try

    def __str__(self) -> str:
        return f"{self.value}, since {self.why}"


def record(found: Mapping[str, Choice]) -> dict[str, dict[str, Any]]:
    """Choices as JSON."""
    return {name: dataclasses.asdict(choice) for name, choice in found.items()}


def read_choices(file: Path) -> Known:
    """A record from a file; ValueError that names the file and what is wrong in it."""
    found: Known = check(
        parse_json(read_bounded(file, LARGEST_JSON), file), RUN_SCHEMA[f"{KEY}?"], str(file)
    )
    return found


def kept(known: Known, changes: Collection[str]) -> dict[str, Any]:
    """The record without the settings that a resume with these changes gets, or chooses again."""
    return {
        name: choice
        for name, choice in known.items()
        if not _again(name, changes) and f"placement.{name}" not in changes
    }


def asked_again(known: Known, changes: Collection[str]) -> list[str]:
    """Settings that a resume chooses again, since what they depend on changed."""
    return [
        name
        for name in known
        if _again(name, changes)
        and f"placement.{name}" not in changes
        and not name.startswith(FORWARD)
    ]


def _again(name: str, changes: Collection[str]) -> bool:
    return not set(ASKS_AGAIN.get(name.partition(".")[0], ())).isdisjoint(changes)
