"""A worker's clock deals out time once: every moment between two marks belongs to one part."""

import subprocess
import sys

import numpy as np
import pytest

from equipoise import clock as clocks
from equipoise.clock import EVERY, Clock


@pytest.fixture
def now(monkeypatch):
    """A time that the test moves."""
    at = [100.0]
    monkeypatch.setattr(clocks, "perf_counter", lambda: at[0])
    return at


def test_a_lap_lasts_from_the_mark_before_it(now):
    seconds, counts = np.zeros(3), np.zeros(3)
    clock = Clock(("env", "reset", "act"), seconds, counts)
    for _ in range(2):
        now[0] += 50  # of no part
        clock.begin()
        now[0] += 3
        clock.lap("env")
        now[0] += 1
        clock.lap("act")
    assert seconds.tolist() == [6, 0, 2] and counts.tolist() == [2, 0, 2]


def test_of_ticks_that_follow_each_other_closely_one_in_some_counts_for_all(now):
    """Ticks of 100 us, of which the first is measured for itself; then one that waits for long."""
    seconds, counts = np.zeros(2), np.zeros(2)
    clock = Clock(("env", "act"), seconds, counts, samples=True)
    for number in range(10 * EVERY):
        clock.begin()
        now[0] += 60e-6
        clock.lap("env")
        now[0] += 40e-6
        clock.lap("act")
        if number % EVERY == 1:
            clock.add("env", 0.0)  # what comes seldom is counted each time
    assert counts.tolist() == [10 * EVERY + 10, 10 * EVERY]
    assert seconds.tolist() == pytest.approx([10 * EVERY * 60e-6, 10 * EVERY * 40e-6])
    for _ in range(EVERY):
        clock.begin()
        now[0] += 5.0
        clock.lap("act")
    before = counts[1]
    clock.begin()
    clock.lap("act")
    assert counts[1] == before + 1, "each tick is measured again"


def test_what_is_measured_within_a_lap_is_taken_out_of_it(now):
    seconds, counts = np.zeros(2), np.zeros(2)
    clock = Clock(("env", "reset"), seconds, counts)
    now[0] += 1
    clock.begin()
    now[0] += 10
    clock.add("reset", 4.0)
    now[0] += 1
    clock.lap("env")
    assert seconds.tolist() == [7, 4] and counts.tolist() == [1, 1]


def test_a_successor_adds_to_what_the_one_before_it_had(now):
    row = np.ones(1), np.ones(1)
    clock = Clock(("env",), *row)
    now[0] += 2
    clock.lap("env")
    assert [x.tolist() for x in row] == [[3], [2]]


def test_a_part_that_the_kind_does_not_name_is_an_error():
    with pytest.raises(KeyError, match="envs"):
        Clock(("env",)).lap("envs")


def test_a_clock_loads_no_torch():
    code = "import sys, equipoise.clock; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
