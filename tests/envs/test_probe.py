"""What a step costs is the env's own time: a probe does not count its wait for a core."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from equipoise.cores import run_delay_s
from equipoise.envs.check.clock import Clock
from equipoise.envs.check.probe import Probe

WORK_S = 0.03


@pytest.fixture
def one_busy_core() -> Iterator[None]:
    """This process and three others share one core."""
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/schedstat"):
        pytest.skip("only Linux tells how long a thread waited for a core")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()
        os.sched_setaffinity(0, before)


def work() -> None:
    until = time.thread_time() + WORK_S
    while time.thread_time() < until:
        pass


def test_the_wait_for_a_core_is_not_counted(one_busy_core: None) -> None:
    probe = Probe.__new__(Probe)
    probe.clock, probe.watch, probe.touched = Clock(60.0), False, ""
    late, counted, began = run_delay_s(), 0.0, time.perf_counter()
    while run_delay_s() - late < 10 * WORK_S:  # others run meanwhile, sooner or later
        counted += probe._call("step 1", work)[1]
    wall = time.perf_counter() - began
    assert 0 < counted < wall - 8 * WORK_S
