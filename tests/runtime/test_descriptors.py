"""How many actors a machine's workers can be told of: what is handed to a process is counted as it
is pickled.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from multiprocessing import context, reduction
from pathlib import Path
from typing import Any

import pytest

from equipoise.plans.beginning import Fresh
from equipoise.plans.plan import plan_run
from equipoise.programs.fields import alter
from equipoise.programs.limits import check_processes
from equipoise.run.beginnings import Services
from equipoise.run.run import Run
from equipoise.runtime.process import forkserver
from equipoise.runtime.process.crew import Crew
from equipoise.runtime.process.process import ProcessRuntime
from equipoise.types import Program, ReplaySettings
from tests.runtime.ruling import Remembering, program

PYTHONS_MOST = 251  # its forkserver says "too many fds" from 252 on


class Counted(Exception):
    """In place of a process: how many descriptors it would have been given."""


class Popen:
    """Of a process that is pickled and not started."""

    def __init__(self) -> None:
        self.given: list[int] = []

    def duplicate_for_child(self, fd: int) -> int:
        self.given.append(fd)
        return fd

    def DupFd(self, fd: int) -> int:
        return fd


def start(process: Any) -> None:
    popen: Any = Popen()
    context.set_spawning_popen(popen)
    try:
        reduction.dump(process, io.BytesIO())
    finally:
        context.set_spawning_popen(None)
    raise Counted(len(popen.given))


def made(actors: int, inference: Any, max_lag: int, workers: int, shards: int) -> Program:
    """``shards``: 0 without a replay."""
    kept: dict[str, Any] = {}
    if shards:
        replay = ReplaySettings(capacity=10_000, shards=shards)
        kept = {"algorithm": Remembering(), "replay": replay, "batch": 32, "steps": 10_000}
    return alter(
        program(actors=actors, envs=2, max_lag=max_lag, **kept),
        inference=inference,
        inference_workers=workers,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a doorbell takes two")
@pytest.mark.parametrize(
    ("inference", "max_lag", "workers", "shards", "most"),
    [
        ("local", 0, 1, 0, 80),
        ("local", 1, 1, 0, 240),
        ("local", 0, 1, 9, 77),
        ("local", 1, 1, 9, 231),
        ("central", 0, 1, 0, 47),
        ("central", 1, 1, 0, 239),
        ("central", 0, 9, 0, 56),
        ("central", 0, 9, 9, 55),
    ],
)
def test_more_actors_than_there_are_descriptors_for_are_refused(
    inference: str,
    max_lag: int,
    workers: int,
    shards: int,
    most: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for kind in (context.ForkServerProcess, forkserver.EnvProcess):
        monkeypatch.setattr(kind, "start", start)
    counted, real = list[int](), Crew._start

    def count(crew: Crew, child: Any) -> None:
        with pytest.raises(Counted) as told:
            real(crew, child)
        counted.append(told.value.args[0])

    monkeypatch.setattr(Crew, "_start", count)
    fits, too_many = (
        made(actors, inference, max_lag, workers, shards) for actors in (most, most + 1)
    )
    check_processes(fits)
    ProcessRuntime(plan_run(fits)).stop()
    assert len(counted) == 1 + fits.actors + (workers if inference == "central" else 0) + shards
    each = (3 if inference == "local" else 5) if max_lag == 0 else 1
    assert PYTHONS_MOST - each - 2 <= max(counted) <= PYTHONS_MOST
    gc.collect()  # the memory of that run, which is mapped
    open_before = os.listdir("/proc/self/fd")
    with pytest.raises(
        ValueError,
        match=rf"actors: expected at most {most} with max_lag={max_lag} and {inference} inference",
    ):
        Run(too_many, Fresh(out=tmp_path / "run"), Services())
    assert not list(tmp_path.iterdir()) and len(os.listdir("/proc/self/fd")) == len(open_before)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a doorbell takes two")
@pytest.mark.parametrize(("max_lag", "away", "most"), [(1, 900, 1139), (0, 900, 119), (1, 30, 269)])
def test_the_doorbells_of_actors_on_other_machines_are_there(
    max_lag: int, away: int, most: int
) -> None:
    """The pipes of their tokens are here: with max_lag=0 the proxy waits for each in its turn."""
    fits, too_many = (made(actors, "local", max_lag, 1, 0) for actors in (most, most + 1))
    check_processes(fits, away=min(away, most))
    with pytest.raises(ValueError, match=f"actors: expected at most {most} with max_lag={max_lag}"):
        check_processes(too_many, away=min(away, most + 1))
