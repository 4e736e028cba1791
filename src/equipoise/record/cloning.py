"""Clones: copies of a run at one of its checkpoints, which a resume goes on from to the same bits;
pins, which keep a checkpoint; and the settings that a learner had in a checkpoint.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from equipoise.files import is_url, json_bytes, parse_json, sync_directory, write_synced
from equipoise.record import checkpoint, paths, statefile
from equipoise.record.directory import BEST, CHECKPOINTS, RunDirectory
from equipoise.record.mirror import SMALL
from equipoise.record.paths import RUN
from equipoise.record.report import METRICS, kept_lines
from equipoise.record.schemas import RUN_SCHEMA
from equipoise.record.summary import SUMMARY
from equipoise.record.trackers.tracker import copied as copied_trackers
from equipoise.schema import Anything, Text, check

TRIES = 10  # at checkpoints that are damaged, or that the run removes meanwhile


def clone(
    source: str | os.PathLike[str], place: str | os.PathLike[str], *, step: int | None = None
) -> Path:
    """Copy a run at its newest whole checkpoint, or at that of ``step``, to the new directory
    ``place``, and return the directory. A resume of it makes the same next update, to the bit.

    The copy has the settings that the run has now, and a resume may change them. The directory
    takes the name ``place`` once it is whole and on the disk. The run may train meanwhile; nothing
    of it changes.
    """
    for given in (source, place):
        if is_url(given):
            raise ValueError(f"clone: must be paths on this machine, got {given}; try a copy of it")
    source, place = Path(source).expanduser(), Path(place).expanduser()
    files = RunDirectory.found(source)
    check(files.run, RUN_SCHEMA, str(source / RUN))
    if os.path.lexists(place):
        raise ValueError(f"{place}: must be a new directory, got one that exists; try another name")
    if place.resolve().is_relative_to(source.resolve()):
        raise ValueError(f"{place}: must be outside of the run {source}; try a name beside it")
    place.parent.mkdir(parents=True, exist_ok=True)
    _remove_broken_off(place)
    aside = place.with_name(f".{place.name}.{secrets.token_hex(4)}.new")
    lock = None
    try:
        aside.mkdir()
        lock = paths.lock(aside)
        _fill(aside, files, step)
        for folder in (aside, *(one for one in aside.rglob("*") if one.is_dir())):
            sync_directory(folder)
        os.rename(aside, place)
        try:
            sync_directory(place.parent)
        except BaseException:
            os.rename(place, aside)
            raise
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    finally:
        if lock is not None:
            os.close(lock)
    return place


def _remove_broken_off(place: Path) -> None:
    """Remove what killed calls for the same place left beside it."""
    name = re.compile(rf"\.{re.escape(place.name)}\.[0-9a-f]{{8}}\.new")
    for path in place.parent.iterdir():
        if name.fullmatch(path.name) and path.is_dir() and not paths.is_locked(path):
            shutil.rmtree(path, ignore_errors=True)


def _fill(aside: Path, files: RunDirectory, step: int | None) -> None:
    problems: dict[Path, str] = {}
    room = aside / CHECKPOINTS
    at = _copied(files.checkpoints, room, lambda found: step in (None, found), problems)
    if at is None:
        raise ValueError(_lacking(files, step, problems))
    for damaged in (text for path, text in problems.items() if path.is_dir()):
        warnings.warn(f"{damaged}; step {at} is copied instead", RuntimeWarning, stacklevel=3)
    _copied(files.checkpoints / BEST, room / BEST, lambda found: found <= at, {}, whole=False)
    for name in SMALL:
        if name not in (RUN, METRICS, SUMMARY) and (files.path / name).is_file():
            (aside / name).parent.mkdir(exist_ok=True)
            write_synced(aside / name, (files.path / name).read_bytes())
    write_synced(aside / METRICS, kept_lines(files.readable_metrics(), at))
    run = {name: value for name, value in files.run.items() if name != "mirror"}
    run["trackers"] = copied_trackers(run.get("trackers", []))
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    run["cloned"] = {"run": str(files.path.resolve()), "step": at, "at": now}
    write_synced(aside / RUN, json_bytes(run))


def _copied(
    source: Path,
    target: Path,
    fits: Callable[[int], bool],
    problems: dict[Path, str],
    *,
    whole: bool = True,
) -> int | None:
    """Copy the newest undamaged checkpoint of a folder whose step fits -> its step; None if there
    is none. ``problems`` takes those that cannot be copied.

    The folder is listed again after each, since a run that trains adds and removes checkpoints.
    """
    tried = set[Path]()
    for _ in range(TRIES):
        left = [
            (at, path)
            for at, path in checkpoint.steps(source)
            if fits(at) and path not in tried and (_is_whole(path) or not whole)
        ]
        if not left:
            break
        at, path = left[0]
        tried.add(path)
        try:
            checkpoint.copied(path, target)
        except (FileNotFoundError, ValueError) as error:
            problems[path] = str(error)
            shutil.rmtree(target, ignore_errors=True)
        else:
            return at
    return None


def _is_whole(path: Path) -> bool:
    return (path / checkpoint.LEARNER).exists()


def _lacking(files: RunDirectory, step: int | None, problems: dict[Path, str]) -> str:
    """The sentence for a run without a whole checkpoint, or without that of a step."""
    there = [str(at) for at, path in checkpoint.steps(files.checkpoints) if _is_whole(path)]
    wanted = "a whole checkpoint" if step is None else f"a whole checkpoint of step {step}"
    got = f"those of {', '.join(there)}" if there else "none"
    why = "".join(f"; {problem}" for problem in problems.values())
    return f"{files.path}: must have {wanted}, got {got}{why}"


def _chosen(run: str | os.PathLike[str], step: int | None) -> tuple[RunDirectory, Path]:
    """A run and its newest whole checkpoint, or that of ``step``; ValueError if there is none."""
    files = RunDirectory.found(run)
    for at, path in checkpoint.steps(files.checkpoints):
        if step in (None, at) and _is_whole(path):
            return files, path
    raise ValueError(_lacking(files, step, {}))


# --------------------------------------------------------------------------------------------- pins


def pin(run: str | os.PathLike[str], step: int) -> None:
    """Keep the whole checkpoint of a step as long as it is pinned, also of a run that trains.

    A resume from a checkpoint before it removes it all the same, with its pin.
    """
    files, _ = _chosen(run, step)
    mark = checkpoint.pin_of(files.checkpoints, step)
    mark.touch()
    sync_directory(files.checkpoints)
    try:
        _chosen(run, step)  # a run that trains may have removed it before it saw the pin
    except ValueError:
        mark.unlink(missing_ok=True)
        raise


def unpin(run: str | os.PathLike[str], step: int) -> None:
    """Leave the checkpoint of a step to the run again, which keeps its newest ones."""
    checkpoint.pin_of(RunDirectory.found(run).checkpoints, step).unlink(missing_ok=True)


def pinned(run: str | os.PathLike[str]) -> list[int]:
    """Return the steps of the pinned checkpoints, in order."""
    checkpoints = RunDirectory.found(run).checkpoints
    marks = (re.fullmatch(r"pin_(\d+)", one.name) for one in checkpoints.iterdir())
    return sorted(int(found[1]) for found in marks if found)


# -------------------------------------------------------------------------------- the live settings


def live_settings(run: str | os.PathLike[str], step: int | None = None) -> dict[str, object]:
    """Return the settings that the learner had in the newest whole checkpoint, or in that of
    ``step``, by their keys.

    ``optimizer.rates.GROUP`` is the rate of a group before the schedule's factor.
    """
    _, path = _chosen(run, step)
    file = path / checkpoint.LEARNER
    state = statefile.parse(checkpoint.read(path, checkpoint.LEARNER), file)
    if "live" not in check(state, {"live?": Text(), "*": Anything()}, str(file)):
        raise ValueError(
            f"{file}: must have the settings of its learner, got none, as older versions wrote it; "
            "try a checkpoint that a resume of the run writes"
        )
    found: dict[str, object] = check(
        parse_json(state["live"].encode(), file, finite=False), {"*": Anything()}, str(file)
    )
    return found
