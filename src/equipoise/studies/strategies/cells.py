"""Cells: the runs of a benchmark suite, each with a program of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from equipoise.facts import Help
from equipoise.studies.history import Decision, History, Start
from equipoise.studies.strategy import Plan


@dataclass(frozen=True, kw_only=True)
class Cells:
    """The missing cells of a suite, one trial each ('equipoise study' begins such a study)."""

    needs_results: ClassVar[bool] = False
    changes_settings: ClassVar[bool] = False

    plan: Plan
    cells: Annotated[tuple[str, ...], Help("NAME:STEPS of each cell")] = ()

    def __post_init__(self) -> None:
        for cell in self.cells:
            name, _, steps = cell.rpartition(":")
            if not (name and steps.isdecimal() and int(steps) > 0):
                raise ValueError(f"Cells.cells: must be NAME:STEPS each, got {cell!r}")

    @property
    def steps(self) -> int:
        """The env steps of the longest cell."""
        return max((int(cell.rpartition(":")[2]) for cell in self.cells), default=1)

    def ask(self, history: History) -> list[Decision]:
        begun, found = len(history.of()), list[Decision]()
        for number, cell in enumerate(self.cells[begun : begun + history.free], begun + 1):
            name, _, steps = cell.rpartition(":")
            reason = f"cell {number} of {len(self.cells)} that are missing"
            found.append(Start(trial=name, settings={}, to=int(steps), reason=reason))
        return found
