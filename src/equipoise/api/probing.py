"""What a run's remedies really gain, by short runs of each: ``probe``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from equipoise.balance.remedies import Probed, Remedy, changes, remedies
from equipoise.cores import busy, usable
from equipoise.programs.refusals import check
from equipoise.record.directory import RunDirectory
from equipoise.record.measured import measured
from equipoise.runtime.session import Interrupt
from equipoise.tuning.runs import raced
from equipoise.types import Program

__all__ = ["Probed", "probe"]

NOW = "as it is"
NOTHING = "as it is, it made no two updates"
TURNS = 4  # of each pair, as far as there is time
EACH_S = 15.0  # of a run that is tried: its starts, and its turns
IDLE = 0.5  # of the cores: with fewer free nothing is measured, unless the user says how long


def probe(
    directory: str | os.PathLike[str],
    *,
    top: int = 3,
    seconds: float | None = None,
    trust: Sequence[str] = (),
) -> list[Probed]:
    """Try the first suggestions for a run's speed, each in short runs beside the run as it is.

    Nothing of the run is changed.

    Args:
        directory: A run that was trained with ``on="process"``.
        top: How many suggestions.
        seconds: The length of each short run; None is 15 s, and needs an idle machine.
        trust: Modules and ``module:callable`` that a run from elsewhere may import.

    Returns:
        Each suggestion with its predicted and its measured gain.

    Raises:
        ValueError: The run measured too little, or the machine is busy.

    Example:
        >>> for one in eq.probe("runs/NAME", seconds=30):  # doctest: +SKIP
        ...     print(one.change, one.predicted, one.gain)
    """
    return probed(directory, top=top, seconds=seconds, trust=trust)


def probed(
    directory: str | os.PathLike[str],
    *,
    top: int = 3,
    seconds: float | None = None,
    trust: Sequence[str] = (),
    tell: Callable[[str], object] = lambda text: None,
) -> list[Probed]:
    """As ``probe``; ``tell`` is called with sentences on the progress."""
    if seconds is not None and not 0 < seconds < float("inf"):
        raise ValueError(f"seconds: expected more than 0, got {seconds:g}")
    if top < 1:
        raise ValueError(f"top: expected at least 1, got {top}")
    known = measured(RunDirectory.open(Path(directory), trusted=trust))
    programs = {change: program for change, _, program in changes(known.program)}
    found = [one for one in remedies(known, allowed=check) if one.change in programs][:top]
    if not found:
        return []
    if seconds is None and (taken := busy()) > (1 - IDLE) * usable():
        raise ValueError(
            f"expected a machine that is idle, got one with {taken:.1f} of {usable()} cores at "
            "work: measurements next "
            "to other processes mean little; stop those, or try it all the same with --seconds 60"
        )
    each = EACH_S if seconds is None else seconds
    tell(f"{2 * len(found)} short runs in turns, for at most {2 * each * len(found):.0f} s")
    with Interrupt() as interrupt:
        tried = [
            _tried(one, known.program, programs[one.change], each, interrupt, tell) for one in found
        ]
    if all(one.said.startswith(NOTHING) for one in tried):
        raise ValueError(
            f"{directory}: expected a run that learns within {each:.0f} s, got none; --seconds "
            f"{4 * each:.0f}"
        )
    return tried


def _tried(
    one: Remedy,
    now: Program,
    program: Program,
    each: float,
    interrupt: Interrupt,
    tell: Callable[[str], object],
) -> Probed:
    """Measure one change in turns with the run as it is."""
    until = time.monotonic() + 2 * each
    race = raced(
        {NOW: now, one.change: program},
        interrupt,
        until=until,
        turns=TURNS,
        far=float("inf"),
        tell=tell,
    )
    interrupt.check()
    gains = [
        b / a for a, b in zip(race.rates[NOW], race.rates[one.change], strict=False) if a and b
    ]
    best, said = race.best, ""
    if NOW not in best:
        said = f"{NOTHING} in {each:.0f} s"
    elif one.change not in best:
        error = race.failed.get(one.change)
        said = (
            f"no two updates in {each:.0f} s; --seconds {4 * each:.0f}"
            if error is None
            else f"failed: {error}"
        )
    return Probed(
        change=one.change,
        predicted=one.gain,
        low=one.low,
        high=one.high,
        said=said,
        gain=None if said else best[one.change] / best[NOW],
        least=min(gains) if gains and not said else None,
        most=max(gains) if gains and not said else None,
    )
