"""A run that is killed or interrupted at any moment has told of what it did: all but the last ten
seconds, or all.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise.record.directory import RunDirectory
from equipoise.runtime.process.hangs import usage
from tests.conftest import descendants
from tests.runtime.beating import moments
from tests.runtime.resuming import command

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

LOST_S = 10.0  # of records, that a SIGKILL may cost
LATEST_S = 25.0  # a run is killed within so long after its first row
KILLS, INTERRUPTS = 5, 3
POLL_S = 0.05
SLOW = (
    "--algorithm sac --actors 2 --envs-per-actor 2 --unroll 4 --batch 64 --steps 1M "
    "--evaluate-episodes 0 --no-recipe"
)
HINDSIGHT = [
    "replay.relabel=0.8",
    "replay.updates=4",
    "replay.starts_at=200",
    "algorithm.hidden=32",
    "algorithm.random_steps=100",
]


class Slow:
    """A slow run on ``on``, as a process group of its own, and how much of the time its driver
    could have run.
    """

    def __init__(self, place: Path, on: str) -> None:
        self.run, self._beats = place / "run", place / "beats"
        words = [
            "train",
            "tests.runtime.beating:Beating",
            *SLOW.split(),
            "--on",
            on,
            "--out",
            str(self.run),
            "--quiet",
        ]
        settings = [f"env.beats={self._beats}", *HINDSIGHT]
        if on == "serial":
            # which would play an env in the same process, to see what goals give
            settings.remove("replay.relabel=0.8")
        words += [word for setting in settings for word in ("--set", setting)]
        self._process = subprocess.Popen(
            command(*words),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        self._steppers: set[int] = set() if on == "process" else {self._process.pid}
        # (a moment, the seconds up to it that the driver waited for a core)
        self._ran: list[tuple[float, float]] = []

    def wait_for_rows(self, deadline: Callable[..., None]) -> None:
        deadline(lambda: self.moments() or self._process.poll() is not None, 200.0, "a row")
        assert self._process.poll() is None, self._process.communicate()[0]

    def moments(self) -> list[float]:
        """When the run's envs made rows; those that are played beside it do not count."""
        if len(self._steppers) < 2 and self._process.pid not in self._steppers:
            self._steppers |= {
                int(one.split()[0]) for one in descendants() if "equipoise actor" in one
            }
        return moments(self._beats, self._steppers)

    def go_on(self, seconds: float) -> None:
        """Let it run, and look at what the kernel says of its driver."""
        end = time.monotonic() + seconds
        while True:
            threads = usage(self._process.pid) or {}
            waited = threads.get(str(self._process.pid), (0, 0))[1]
            self._ran.append((time.monotonic(), 1e-9 * waited))
            if time.monotonic() >= end:
                return
            time.sleep(POLL_S)

    def end(self, number: signal.Signals) -> tuple[float, int]:
        """Send a signal, SIGKILL to the whole group -> (the moment before, the exit code)."""
        now = time.monotonic()
        if number == signal.SIGKILL:
            os.killpg(self._process.pid, number)
        else:
            self._process.send_signal(number)
        self._process.communicate(timeout=120)
        return now, self._process.returncode

    def rows(self, until: float) -> int:
        """The rows that its envs had made by then."""
        return bisect_right(self.moments(), until)

    def told(self) -> int:
        """The rows that its records tell of."""
        lines = RunDirectory.open(self.run, trusted=["tests.runtime.beating"]).metrics()
        return max((line["taken"] for line in lines), default=0)

    def old(self, now: float) -> float:
        """The moment from which on the driver could have run for ``LOST_S`` up to ``now``."""
        last = self._ran[-1][1]
        return max(
            (at for at, waited in self._ran if now - at - (last - waited) >= LOST_S), default=-1.0
        )

    def __enter__(self) -> Slow:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


def killed(place: Path, on: str, after_s: float, deadline: Callable[..., None]) -> float:
    """Kill a run so long after its first row -> how many seconds of rows its records lack."""
    with Slow(place, on) as slow:
        slow.wait_for_rows(deadline)
        slow.go_on(after_s)
        now, code = slow.end(signal.SIGKILL)
        assert code == -signal.SIGKILL
        told, old = slow.told(), slow.old(now)
        assert slow.rows(now) > 0
        lacking = [at for at in slow.moments()[told:] if at <= now]
        assert slow.rows(old) <= told, (
            f"killed after {after_s:.1f} s, {slow.rows(now)} rows, {told} of them told"
        )
        return now - lacking[0] if lacking else 0.0


@pytest.mark.parametrize("kill", range(KILLS))
def test_a_killed_run_lacks_no_more_than_ten_seconds_of_records(
    kill: int, tmp_path: Path, seed: int, deadline: Callable[..., None]
) -> None:
    moment = (kill + random.Random(seed).random()) / KILLS * LATEST_S
    killed(tmp_path, "serial" if kill % 2 else "process", moment, deadline)


@pytest.mark.parametrize("moment", range(INTERRUPTS))
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_lacks_none(
    moment: int, number: signal.Signals, tmp_path: Path, seed: int, deadline: Callable[..., None]
) -> None:
    with Slow(tmp_path, "serial" if moment == 1 else "process") as slow:
        slow.wait_for_rows(deadline)
        slow.go_on((moment + random.Random(seed).random()) / INTERRUPTS * LATEST_S / 2)
        now, code = slow.end(number)
        assert code == (130 if number == signal.SIGINT else 143)
        assert slow.told() >= slow.rows(now) > 0
        summary = RunDirectory.open(slow.run, trusted=["tests.runtime.beating"]).summary()
        assert (
            summary is not None
            and summary["status"] == "interrupted"
            and summary["taken"] >= slow.told()
        )
