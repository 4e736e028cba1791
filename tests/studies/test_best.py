"""The best trial, and the front of score against cost."""

from __future__ import annotations

import math

import pytest

from equipoise.studies.best import best, worth
from equipoise.studies.history import History, Point, State, Trial
from equipoise.studies.pareto import cost, front


def trial(
    name: str,
    score: float | None,
    steps: int = 100,
    seconds: float = 1.0,
    state: State = "paused",
    alarms: tuple[str, ...] = (),
    target: int | None = None,
) -> Trial:
    return Trial(
        name=name,
        settings={},
        state=state,
        target=steps if target is None else target,
        steps=steps,
        points=[] if score is None else [Point(steps, score)],
        core_seconds=seconds,
        alarms=list(alarms),
    )


def history(*trials: Trial) -> History:
    return History(trials={one.name: one for one in trials})


def name_of_best(*trials: Trial) -> str | None:
    found = best(history(*trials))
    return found.name if found else None


def test_a_score_at_all_steps_beats_a_higher_one_at_fewer() -> None:
    assert name_of_best(trial("a", 9.0, 10), trial("b", 1.0), trial("c", 2.0)) == "c"
    assert name_of_best(trial("a", 9.0, 10), trial("b", None), trial("c", math.nan)) == "a"
    assert name_of_best() is None
    assert name_of_best(trial("a", None), trial("b", math.inf)) is None


def test_a_few_steps_more_than_asked_for_do_not_make_a_trial_the_best() -> None:
    late = trial("a", 1.0, steps=107, target=100)
    assert name_of_best(late, trial("b", 2.0, steps=101, target=100)) == "b"


def test_a_trial_that_failed_or_ended_by_an_alarm_is_not_the_best() -> None:
    failed = trial("a", 9.0, state="failed")
    alarmed = trial("b", 9.0, state="done", alarms=("it diverges",))
    assert name_of_best(failed, alarmed, trial("c", 1.0, 10)) == "c"
    assert worth(trial("d", 3.0, alarms=("slow",))) == 3.0


def test_a_trial_that_reached_its_goal_early_counts_as_whole() -> None:
    assert name_of_best(trial("a", 9.0, 10, state="done", target=100), trial("b", 1.0)) == "a"


def test_a_confirmation_is_not_the_searchs_best() -> None:
    confirmation = trial("b", 9.0)
    confirmation.role = "confirm"
    assert name_of_best(trial("a", 1.0), confirmation) == "a"


def test_worth_at_steps_is_that_of_the_first_result_from_there_on() -> None:
    one = trial("a", 3.0, 30)
    one.points = [Point(11, 1.0), Point(21, math.nan), Point(30, 3.0)]
    assert [worth(one, steps) for steps in (10, 11, 20, 30, 40)] == [1, 1, -math.inf, 3, 3]
    one.steps = 40  # its last stretch had no score
    assert worth(one) == -math.inf


def test_the_front_has_the_trials_that_none_beats_in_score_and_cost() -> None:
    trials = [
        trial("as cheap", 0.5, seconds=1),
        trial("cheap", 1.0, seconds=1),
        trial("beaten", 1.0, seconds=2),
        trial("worse", 0.5, seconds=3),
        trial("middle", 2.0, seconds=3),
        trial("dear", 5.0, seconds=30),
        trial("equal", 5.0, seconds=30),
        trial("wasted", 4.0, seconds=40),
        trial("failed", 9.0, seconds=1, state="failed"),
        trial("nan", math.nan, seconds=1),
    ]
    assert [one.name for one in front(history(*trials))] == ["cheap", "middle", "dear"]
    assert front(history()) == []


def test_a_clone_costs_what_its_parents_did_up_to_the_cuts() -> None:
    first = trial("first", 1.0, steps=100, seconds=50.0)
    second = trial("second", 1.0, steps=60, seconds=20.0)
    second.parent, second.parent_steps = "first", 40
    third = trial("third", 1.0, steps=70, seconds=3.0)
    third.parent, third.parent_steps = "second", 50
    assert cost(history(first, second, third), third) == pytest.approx(3 + 20 / 2 + 50 * 0.4)
