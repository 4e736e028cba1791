"""Paths of run directories: the name of a new one, and the nearest that exist."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from equipoise.hints import nearest
from equipoise.programs.program import algorithm_name
from equipoise.types import Program, learning

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

RUN = "run.json"  # the file that makes a directory a run
CAPSULES = "capsules"
VIDEOS = "videos"


def make_default(program: Program) -> Path:
    """Make runs/<env>-<algorithm>-<seed>-<timestamp>, numbered if two start in a second."""
    algorithm = "-".join(
        dict.fromkeys(
            algorithm_name(type(policy.algorithm)) for policy in learning(program).values()
        )
    )
    path = named(program.name, algorithm, program.schedule.seed)
    candidate, n = path, 1
    while True:
        try:
            candidate.mkdir(parents=True)
        except FileExistsError:
            n += 1
            candidate = path.with_name(f"{path.name}-{n}")
        else:
            return candidate


def named(env: str, algorithm: str, seed: int) -> Path:
    """Return the path runs/<env>-<algorithm>-<seed>-<timestamp>."""
    name = f"{env}-{algorithm}-{seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    return Path("runs") / re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip(".-")


def check_vacant(directory: Path) -> None:
    """Refuse a directory that has something in it."""
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(
            f"{directory}: expected a directory to write the run into, got a file"
        )
    if directory.is_dir() and (there := sorted(os.listdir(directory))):
        what = "one that holds a run" if RUN in there else f"one that holds {', '.join(there[:3])}"
        raise FileExistsError(
            f"{directory}: expected a new or an empty directory to write the run into, got {what}"
        )


def make(directory: Path) -> Path:
    check_vacant(directory)
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def lock(directory: Path) -> int | None:
    """Lock a run directory until this process ends -> what to close to unlock it.

    ValueError if another process has locked it.
    """
    handle = None
    if fcntl is not None:
        handle = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise ValueError(
                f"{directory}: expected a run that has ended, got one that another process writes "
                "now"
            ) from None
    return handle


def is_locked(directory: Path) -> bool:
    """Does a process write the run?"""
    if fcntl is not None:
        handle = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
    return False


def set_aside(directory: Path) -> Path:
    """Rename a run directory that no process writes to the first free DIR.1, DIR.2, ..."""
    directory = directory.expanduser().absolute()
    handle, n = lock(directory), 1
    try:
        while (target := directory.with_name(f"{directory.name}.{n}")).exists():
            n += 1
        return directory.rename(target)
    finally:
        if handle is not None:
            os.close(handle)


def near_runs(path: Path) -> str:
    """A hint at runs that do exist, by the name's likeness."""
    places = [place for place in (path.parent, Path("runs")) if place.is_dir()]
    runs = sorted({str(run.parent) for place in places for run in place.glob(f"*/{RUN}")})
    if not runs:
        return "; 'equipoise train ENV' makes one"
    near = nearest(str(path), runs)
    return (
        f"; did you mean {near!r}?"
        if near
        else f"; there {'is' if len(runs) == 1 else 'are'} {', '.join(runs[:3])}"
        f"{' ...' if len(runs) > 3 else ''}"
    )
