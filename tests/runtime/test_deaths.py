"""What a worker's death says of the next: a fault of its own that repeats ends the run, a signal
from outside does not.
"""

from __future__ import annotations

import signal
from typing import Any

import pytest

from equipoise import deaths
from equipoise.deaths import LONGEST_BACKOFF_S, Death, Streak

RAISED = Death("raised an exception", "ValueError")
KILLED = Death.of(-signal.SIGKILL)


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(deaths, "time", made)
    return made


@pytest.mark.parametrize(
    ("exitcode", "how", "outside"),
    [
        (7, "exited with code 7", False),
        (0, "exited with code 0", False),
        (-signal.SIGKILL, "was killed by SIGKILL", True),
        (-signal.SIGTERM, "was killed by SIGTERM", True),
        (-signal.SIGSEGV, "was killed by SIGSEGV", False),
        (-60, "was killed by signal 60", False),
    ],
)
def test_a_death_says_how_and_from_where(exitcode: int, how: str, outside: bool) -> None:
    assert Death.of(exitcode) == Death(how, how, outside)


def after(
    made: list[Any],
    clock: Clock,
    *,
    learned_at: float = 0.0,
    every_s: float = 1.0,
    progress: bool = False,
) -> str:
    streak, said = Streak(), ""
    for death in made:
        clock.now += every_s
        streak.add(death, progress=progress)
        said = said or streak.hopeless(death, learned_at=learned_at, give_up_s=60.0)
    return said


def test_an_exception_that_repeats_ends_the_run(clock: Clock) -> None:
    assert after([RAISED] * 2, clock) == "" and after([RAISED] * 3, clock) == "3 times in a row"


def test_progress_or_another_cause_begins_anew(clock: Clock) -> None:
    assert after([RAISED] * 100, clock, progress=True) == ""
    assert after([RAISED, RAISED, Death("raised an exception", "KeyError")] * 100, clock) == ""


def test_signals_from_outside_end_it_only_when_nothing_is_learned_for_long(clock: Clock) -> None:
    assert after([KILLED] * 60, clock) == ""
    assert after([KILLED] * 62, clock) == "62 times in a row, and nothing was learned for 61 s"
    assert after([KILLED] * 62, clock, learned_at=clock.now + 2) == ""
    assert after([KILLED] * 2, clock, every_s=1000.0) == "", (
        "two deaths are no sign, however long ago the first was"
    )


def test_the_wait_grows_to_a_longest_one() -> None:
    streak, waits = Streak(), []
    for _ in range(3000):
        streak.add(KILLED, progress=False)
        waits.append(streak.backoff_s)
    assert waits[:3] == [0.1, 0.2, 0.4] and waits[-1] == LONGEST_BACKOFF_S
