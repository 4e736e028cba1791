"""What a run's remedies really gain, by short runs of each: ``probe``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.balance.remedies import changes, remedies
from equipoise.programs.refusals import check
from equipoise.record.directory import RunDirectory
from equipoise.record.measured import measured
from equipoise.run.measure import raced
from equipoise.run.session import Interrupt

__all__ = ["Probed", "probe"]

NOW = "as it is"
EACH_S = 15.0  # of a run that is tried: its starts, and two turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """A remedy that was tried."""

    change: str
    predicted: float  # steps/s over those of the run as it is
    low: float
    high: float
    gain: float | None  # measured; None: it failed, or there was no time for it
    said: str  # what came of it, where that is no number


def probe(
    directory: str | os.PathLike[str],
    *,
    top: int = 3,
    trust: Sequence[str] = (),
    tell: Callable[[str], object] = lambda text: None,
) -> list[Probed]:
    """Try the first ``top`` remedies of a run that are settings, in short runs in turns with the run as it is.

    Nothing of the run is changed. ValueError where the run measured too little; KeyboardInterrupt leaves nothing.
    """
    if top < 1:
        raise ValueError(f"top: expected at least 1, got {top}")
    known = measured(RunDirectory.open(Path(directory), trusted=trust))
    programs = {change: program for change, _, program in changes(known.program)}
    found = [one for one in remedies(known, allowed=check) if one.change in programs][:top]
    if not found:
        return []
    labels = {NOW: known.program} | {one.change: programs[one.change] for one in found}
    tell(f"{len(labels)} short runs in turns, for at most {EACH_S * len(labels):.0f} s")
    with Interrupt() as interrupt:
        race = raced(labels, interrupt, until=time.monotonic() + EACH_S * len(labels), far=float("inf"), tell=tell)
    interrupt.check()
    best = race.best
    if NOW not in best:
        raise ValueError(f"{directory}: expected a run that learns within {EACH_S:.0f} s, got none: {race.said}")
    return [
        Probed(
            change=one.change, predicted=one.gain, low=one.low, high=one.high,
            gain=best[one.change] / best[NOW] if one.change in best else None,
            said="" if one.change in best else _why(race.failed.get(one.change)),
        )
        for one in found
    ]  # fmt: skip


def _why(error: Exception | None) -> str:
    return "no time for it" if error is None else f"failed: {error}"
