"""A deadline is of time in which a worker could have run: to compute, and to wait for a core, is
not to hang.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise.runtime.process import hangs
from equipoise.runtime.process.hangs import ENDLESS, Watch

DEADLINE_S = 10.0


class Process:
    """What the kernel would say of a process of two threads, and a clock."""

    now = 1000.0

    def __init__(self) -> None:
        self.computed, self.waited = [0.0, 0.0], [0.0, 0.0]
        self.known = True

    def usage(self, pid: int) -> Any:
        times = zip(self.computed, self.waited, strict=True)
        return (
            {str(i): (int(1e9 * c), int(1e9 * w)) for i, (c, w) in enumerate(times)}
            if self.known
            else None
        )


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    made = Process()
    monkeypatch.setattr(hangs, "usage", made.usage)
    return made


def passes(
    process: Process,
    watch: Watch,
    seconds: int,
    ticked: float,
    *,
    computes: float = 0.0,
    waits: float = 0.0,
) -> str:
    """A look a second until it says something; ``computes`` and ``waits``: shares of each second,
    of either thread.
    """
    for _ in range(seconds):
        process.now += 1.0
        process.computed = [one + computes for one in process.computed]
        process.waited = [one + waits for one in process.waited]
        if said := watch.look(process.now, ticked, DEADLINE_S):
            return said
    return ""


def test_to_do_nothing_is_to_hang(process: Process) -> None:
    watch = Watch(1, process.now)
    assert passes(process, watch, 10, process.now) == ""
    assert passes(process, watch, 1, process.now - 10) == "did nothing for 11 s"


def test_a_tick_begins_the_deadline_anew(process: Process) -> None:
    watch = Watch(1, process.now)
    for _ in range(5):
        assert passes(process, watch, 9, ticked=process.now) == ""


@pytest.mark.parametrize(("computes", "waits"), [(0.0, 1.0), (0.02, 0.98), (0.1, 3.0)])
def test_to_wait_for_a_core_is_not_to_hang(computes: float, waits: float, process: Process) -> None:
    assert (
        passes(process, Watch(1, process.now), 100, process.now, computes=computes, waits=waits)
        == ""
    )


@pytest.mark.parametrize("computes", [0.5, 1.0, 4.0])
def test_to_compute_is_to_hang_only_after_much_longer(computes: float, process: Process) -> None:
    """Two threads that each have half of a core are a whole one; the time of four is not counted
    twice.
    """
    watch, began = Watch(1, process.now), process.now
    assert (
        passes(process, watch, 1000, began, computes=computes)
        == "computed for 51 s without an end of its tick"
    )
    assert process.now - began == ENDLESS * DEADLINE_S + 1


def test_what_else_passes_is_idle(process: Process) -> None:
    """A tenth of each second on a core, a tenth waiting for one:
    eight tenths could have been used.
    """
    watch, began = Watch(1, process.now), process.now
    assert passes(process, watch, 1000, began, computes=0.05, waits=0.05).startswith(
        "did nothing for 10 s"
    )
    assert process.now - began == 13


def test_where_the_kernel_does_not_say_all_time_counts(process: Process) -> None:
    process.known = False
    watch, began = Watch(1, process.now), process.now
    assert passes(process, watch, 1000, began, computes=1.0) == "did nothing for 11 s"


def test_leave_that_was_given_does_not_count(process: Process) -> None:
    watch, until = Watch(1, process.now), process.now + 60
    assert passes(process, watch, 70, until) == ""
    assert passes(process, watch, 1, until) == "did nothing for 11 s"


@pytest.fixture
def child() -> Iterator[Any]:
    made = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    )
    assert made.stdout is not None and made.stdout.readline()
    yield made
    made.kill()
    made.communicate()


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="the kernel keeps no such statistics"
)
def test_the_kernel_tells_a_loop_from_a_stop(child: Any, deadline: Any) -> None:
    def spent() -> int:
        return sum(sum(times) for times in (hangs.usage(child.pid) or {}).values())

    before = spent()
    deadline(
        lambda: spent() > before + 10**8,
        what="the loop to take, or to wait for, a tenth of a second of a core",
    )
    child.send_signal(signal.SIGSTOP)
    deadline(
        lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(") ")[2][0] == "T",
        what="it to stop",
    )
    at, watch = spent(), Watch(child.pid, 0.0)
    assert (
        watch.look(0.0, 0.0, 1.0) == ""
        and watch.look(2.0, 0.0, 1.0) == "did nothing for 2 s"
        and spent() == at
    )


def test_of_a_process_that_has_ended_the_kernel_says_nothing(child: Any) -> None:
    child.kill()
    child.wait()
    assert hangs.usage(child.pid) is None
