"""``equipoise chaos``: every fault against a run of its own, a line each."""

from __future__ import annotations

import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.chaos.attack import Attack, Nodes, Rows, Wrong
from equipoise.chaos.faults import FAULTS, Fault
from equipoise.hints import hint
from equipoise.types import Inference

LIMIT_S = 120.0  # limit of one row, besides the seconds that the fault lasts
HEAD = ("fault", "outcome", "rows", "dropped", "lost", "duplicated", "torn", "recovery s", "took s")
WIDTHS = (17, 8, 8, 8, 5, 11, 5, 11, 7)  # 80 together


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    fault: str
    passed: bool
    rows: Rows | None  # None: the run did not end
    recovery_s: float | None  # the longest pause of the learner from the first fault on
    took_s: float
    why: str  # reason of a failure


def chosen(names: Sequence[str]) -> list[Fault]:
    """The chosen faults in the order of the matrix; ValueError names the nearest of another."""
    known = [fault.name for fault in FAULTS]
    for name in names:
        if name not in known:
            raise ValueError(f"unknown fault {name!r}{hint(name, known)}")
    return [fault for fault in FAULTS if not names or fault.name in names]


def inflict(
    fault: Fault, seconds: float, inference: Inference = "local", nodes: Nodes | None = None
) -> Result:
    """Run one row. No process is left on this machine, whatever happens."""
    began = time.monotonic()
    rows, recovery, why = None, None, ""
    with (
        tempfile.TemporaryDirectory(prefix="equipoise-chaos-") as place,
        Attack(Path(place), limit_s=LIMIT_S + seconds, inference=inference, nodes=nodes) as attack,
    ):
        try:
            fault.do(attack, seconds)
            rows, recovery = attack.rows(), attack.beats.pause_s(attack.began_at)
            if rows.lost or rows.duplicated or rows.torn:
                why = (
                    f"{rows.lost} rows lost, {rows.duplicated} duplicated, {rows.torn} torn; "
                    f"{attack.said()}"
                )
        except Wrong as error:
            why = str(error)
    return Result(
        fault=fault.name,
        passed=not why,
        rows=rows,
        recovery_s=recovery,
        took_s=time.monotonic() - began,
        why=why,
    )


def matrix(
    faults: Sequence[Fault],
    seconds: float,
    tell: Callable[[str], None],
    inference: Inference = "local",
    nodes: Nodes | None = None,
) -> list[Result]:
    """Run all rows and report each at once. ``nodes``: machines of actors, if not this one."""
    if sys.platform != "linux":
        raise ValueError(
            f"expected Linux, whose /proc finds the workers of a run, got {sys.platform}"
        )
    tell(_line(HEAD))
    results = []
    for fault in faults:
        results.append(inflict(fault, seconds, inference, nodes))
        for line in lines(results[-1]):
            tell(line)
    passed = sum(result.passed for result in results)
    tell(f"{passed} of {len(results)} passed in {sum(r.took_s for r in results):.0f} s")
    return results


def lines(result: Result) -> list[str]:
    rows = result.rows
    counts = (
        ["n/a"] * 5
        if rows is None
        else [f"{n:,}" for n in (rows.proven, rows.dropped, rows.lost, rows.duplicated, rows.torn)]
    )
    recovery = "n/a" if result.recovery_s is None else f"{result.recovery_s:.2f}"
    cells = [
        result.fault,
        "pass" if result.passed else "FAIL",
        *counts,
        recovery,
        f"{result.took_s:.1f}",
    ]
    why = textwrap.wrap(result.why, sum(WIDTHS), initial_indent="    ", subsequent_indent="    ")
    return [_line(cells), *why]


def _line(cells: Sequence[str]) -> str:
    first = [f"{cell:<{width}}" for cell, width in zip(cells[:2], WIDTHS[:2], strict=True)]
    return "".join(
        [*first, *(f"{cell:>{width}}" for cell, width in zip(cells[2:], WIDTHS[2:], strict=True))]
    )
