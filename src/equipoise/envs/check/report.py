"""The report of a check: findings, facts, times, and the parts that were not looked at; as JSON
between two processes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.envs.check.findings import Finding

# The probes of a check, in their order.
MAKING = "making the env"
FIRST = "the first walk"
AGAIN = "a fresh env with the same seed"
BESIDE = "two envs side by side"
ANEW = "the first env seeded again"
SEAMS = "other actions after an end"
RULES = "PettingZoo's parallel_api_test"
CLOSING = "closing the env"  # after them, whatever came of them
PROBES = (MAKING, FIRST, AGAIN, BESIDE, ANEW, SEAMS, RULES)

ALL = "every walk"

TIME_UP = "the time was up; --seconds gives more"
BROKEN = "the env went no further"
INTERRUPTED = "interrupted"
HUNG = "a call did not return"
DIED = "its process ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of one kind of call."""

    mean: float
    p50: float
    p99: float
    max: float
    count: int

    @classmethod
    def of(cls, seconds: list[float]) -> Times:
        p50, p99 = np.quantile(seconds, (0.5, 0.99)).tolist()
        return cls(
            mean=float(np.mean(seconds)), p50=p50, p99=p99, max=max(seconds), count=len(seconds)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The findings of a check. ``left_out``: the probes that were not made, and ``why``."""

    target: str
    findings: tuple[Finding, ...]  # errors first
    facts: dict[str, str]  # in reading order
    step_s: Times | None = None
    reset_s: Times | None = None  # None also if a vector env resets within its steps
    streams: int = 1  # streams that one call steps
    left_out: tuple[str, ...] = ()  # the parts that were not looked at, probe by probe
    why: str = ""

    @property
    def ok(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)

    def found(self, *more: Finding) -> Report:
        """The report with more findings, errors first."""
        return dataclasses.replace(
            self, findings=tuple(sorted((*self.findings, *more), key=lambda f: f.severity))
        )

    def json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def of_json(cls, row: dict[str, Any]) -> Report:
        """Read what ``json`` gave, also after a journey as text."""
        times = {
            name: None if row[name] is None else Times(**row[name])
            for name in ("step_s", "reset_s")
        }
        findings = tuple(Finding(**finding) for finding in row["findings"])
        return cls(**{**row, **times, "findings": findings, "left_out": tuple(row["left_out"])})
