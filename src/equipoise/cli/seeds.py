"""``train --seeds N``: a study of the same settings on several seeds."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.files import is_url

if TYPE_CHECKING:
    from equipoise.record.listing import RunRow


def check_seeds(
    *, prometheus: str | None, callbacks: Sequence[str] | None, or_resume: bool, out: str | None
) -> None:
    """Raise ValueError for an option that only a single run has."""
    if prometheus is not None:
        raise ValueError("--seeds: expected no --prometheus, which serves one run, got it")
    if callbacks:
        raise ValueError("--seeds: must stand without --callback, which hears one run")
    if or_resume or is_url(out):
        raise ValueError(
            "--seeds: expected a local --out, without --or-resume; the same command with the same "
            "--out goes on"
        )


def print_seeds(study: Path) -> None:
    """Print a line for each seed, the means with their intervals, and what to do next."""
    from equipoise.console.place import width_of
    from equipoise.console.tables import seeds_table
    from equipoise.record import listing
    from equipoise.studies.settings import TRIALS

    place = study / TRIALS
    found = [listing.row(run.parent) for run in sorted(place.glob("seed_*/run.json"), key=_seed)]
    for line in seeds_table(found, width=width_of(sys.stdout)):
        print(line)
    print(f"The runs are in {shlex.quote(str(place))}. Next:")
    for command in next_commands(study, found):
        print(f"  equipoise {command}")


def next_commands(study: Path, found: Sequence[RunRow]) -> list[str]:
    """Commands that work on these runs: ``plot`` if an episode has ended and matplotlib is there,
    and to play one run.
    """
    from equipoise.console.terminal import has_learned, play_command
    from equipoise.record.directory import RunDirectory

    commands = []
    if find_spec("matplotlib") and any(row.return_mean is not None for row in found):
        commands.append(f"plot {shlex.quote(str(study))}")
    if (played := next((row.path for row in found if has_learned(row.path)), None)) is not None:
        play = play_command(RunDirectory.open(played).program)
        commands.append(play.format(shlex.quote(str(played))))
    return commands


def _seed(run: Path) -> int:
    return int(run.parent.name.rpartition("_")[2])
