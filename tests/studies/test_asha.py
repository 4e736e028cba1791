"""Successive halving and the median rule: which trials go on, and what that saves."""

from __future__ import annotations

import math

import numpy as np
import pytest

from equipoise.studies.best import best
from equipoise.studies.history import GoOn, History, Result, Start, Stop
from equipoise.studies.space import Settings, read_space
from equipoise.studies.strategies.asha import ASHA, rungs_of
from equipoise.studies.strategies.median import MedianStopping
from equipoise.studies.strategies.random_search import RandomSearch
from equipoise.studies.strategy import Plan
from tests.studies.simulated import Curve, simulate

SPACE = read_space(["x=0.0..1", "y=0.0..1", "z=0.0..1", "pace=0.0..1"])
STEPS = 2700


def true_score(settings: Settings, steps: int) -> float:
    """Return the score without noise: curves cross, since some learn twice as fast as others."""
    x, y, z, pace = (float(settings[key]) for key in ("x", "y", "z", "pace"))
    height = 100 * (1 - (x - 0.3) ** 2 - (y - 0.6) ** 2 - (z - 0.5) ** 2)
    return height * (1 - math.exp(-steps / (300 * 2**pace)))


def measured(settings: Settings, steps: int) -> float:
    noise = np.random.default_rng([int(float(settings["x"]) * 1e9), steps]).normal(0, 1)
    return true_score(settings, steps) + float(noise)


def study_of(number: int) -> tuple[float, float, float]:
    """Return the score of ASHA's winner, that of the best of all 200 trials if each is whole, and
    the part of their env steps that ASHA takes.
    """
    plan = Plan(space=SPACE, trials=200, steps=STEPS, seed=number)
    done = simulate(ASHA(plan=plan), lambda one, _: Curve(one, measured), jobs=8, pure=number == 0)
    winner = best(done.history)
    assert winner is not None and winner.steps == STEPS
    whole = max(
        true_score(one.settings, STEPS)
        for one in RandomSearch(plan=plan).ask(History(jobs=200))
        if isinstance(one, Start)
    )
    return true_score(winner.settings, STEPS), whole, done.steps / (200 * STEPS)


@pytest.mark.thorough
def test_halving_finds_the_best_of_200_trials_at_a_third_of_the_steps() -> None:
    studies = [study_of(number) for number in range(100)]
    found = [ours >= 0.98 * whole and part <= 1 / 3 for ours, whole, part in studies]
    assert sum(found) >= 90
    assert max(part for _, _, part in studies) < 0.2


def test_rungs_end_with_a_whole_trial() -> None:
    assert rungs_of(2700, 3) == (100, 300, 900, 2700)
    assert rungs_of(1000, 3) == (37, 111, 333, 1000)
    assert rungs_of(1000, 4) == (62, 248, 1000)
    assert rungs_of(1000, 2, 500) == (500, 1000)
    assert rungs_of(1000, 3, 900) == (1000,)
    assert rungs_of(1, 3) == (1,)
    assert rungs_of(1000, 1000) == (1000,)


def paused(strategy: ASHA, *scores: float) -> History:
    """Return a history whose trials have these scores at the first rung."""
    history = History(jobs=len(scores))
    for one, score in zip(strategy.ask(history), scores):
        history.add(one)
        assert isinstance(one, Start)
        history.add(Result(trial=one.trial, steps=one.to, state="paused", score=score))
    return history


def test_the_best_third_of_a_rung_goes_on_with_a_reason() -> None:
    strategy = ASHA(plan=Plan(space=SPACE, trials=6, steps=900))
    history = paused(strategy, 1.0, 6.0, 3.0, 5.0, 4.0, 2.0)
    decisions = strategy.ask(history)
    assert [(one.trial, one.to) for one in decisions if isinstance(one, GoOn)] == [
        ("trial_0001", 99),
        ("trial_0003", 99),
    ]
    assert decisions[0].reason == (
        "its score 6 at 33 steps is number 1 of 6 trials, and one in 3 goes on"
    )


def test_a_trial_that_waits_at_a_higher_rung_is_not_promoted_from_a_lower_one() -> None:
    strategy = ASHA(plan=Plan(space=SPACE, trials=9, steps=900))
    history = paused(strategy, *map(float, range(9)))
    for score, one in enumerate(strategy.ask(history)):
        history.add(one)
        history.add(Result(trial=one.trial, steps=99, state="paused", score=float(score)))
    assert [one.trial for one in strategy.ask(history)] == ["trial_0006"]


def test_a_score_that_is_not_finite_is_never_promoted() -> None:
    strategy = ASHA(plan=Plan(space=SPACE, trials=3, steps=900))
    assert strategy.ask(paused(strategy, math.nan, math.inf, -math.inf)) == []


def test_new_settings_begin_while_no_trial_may_go_on() -> None:
    strategy = ASHA(plan=Plan(space=SPACE, trials=4, steps=900))
    history = paused(ASHA(plan=Plan(space=SPACE, trials=2, steps=900)), 1.0, 2.0)
    assert [one.trial for one in strategy.ask(history)] == ["trial_0002", "trial_0003"]


def test_a_trial_that_was_promoted_and_failed_makes_room_for_the_next() -> None:
    strategy = ASHA(plan=Plan(space=SPACE, trials=3, steps=900))
    history = paused(strategy, 1.0, 3.0, 2.0)
    (first,) = strategy.ask(history)
    history.add(first)
    assert first.trial == "trial_0001" and strategy.ask(history) == []
    history.add(Result(trial=first.trial, steps=50, state="failed"))
    assert [one.trial for one in strategy.ask(history)] == ["trial_0002"]


def test_a_whole_trial_ends_the_study() -> None:
    strategy = ASHA(plan=Plan(space=SPACE, trials=2, steps=900))
    history = paused(strategy, 1.0, 2.0)
    for to in (99, 297, 900):
        (one,) = strategy.ask(history)
        assert isinstance(one, GoOn) and (one.trial, one.to) == ("trial_0001", to)
        history.add(one)
        history.add(Result(trial=one.trial, steps=to, state="paused", score=2.0))
    assert strategy.ask(history) == []


def test_a_first_rung_beyond_the_trial_is_refused() -> None:
    with pytest.raises(ValueError, match=r"first_rung: must be at most .* \(100\), got 101; try 0"):
        ASHA(plan=Plan(space=SPACE, trials=2, steps=100), first_rung=101)


def with_points(rows: list[list[float]], trials: int = 4) -> tuple[MedianStopping, History]:
    strategy = MedianStopping(plan=Plan(space=SPACE, trials=trials, steps=100), every=10)
    history = History(jobs=len(rows))
    for row, start in zip(rows, strategy.ask(history)):
        history.add(start)
        for place, score in enumerate(row, start=1):
            name = start.trial
            if place > 1:
                history.add(GoOn(trial=name, to=10 * place, reason="on"))
            history.add(Result(trial=name, steps=10 * place, state="paused", score=score))
    return strategy, history


def test_a_trial_below_the_median_of_running_averages_stops() -> None:
    # at 20 steps the others' averages are 2, 3 and 8
    strategy, history = with_points([[1.0, 3.0, 9.0], [2.0, 4.0], [6.0, 10.0], [0.0, 2.9]])
    decisions = strategy.ask(history)
    stops = [one for one in decisions if isinstance(one, Stop)]
    assert [one.trial for one in stops] == ["trial_0003"]
    assert stops[0].reason == (
        "its best score 2.9 up to 20 steps is below the median 3 of 3 trials"
    )
    assert [(one.trial, one.to) for one in decisions if isinstance(one, GoOn)] == [
        ("trial_0000", 40),
        ("trial_0001", 30),
        ("trial_0002", 30),
    ]


def test_a_trial_at_the_median_goes_on_and_its_best_score_counts() -> None:
    strategy, history = with_points([[1.0, 3.0], [2.0, 4.0], [6.0, 10.0], [3.0, -5.0]])
    assert not any(isinstance(one, Stop) for one in strategy.ask(history)[:1])


def test_no_trial_stops_before_its_grace_or_with_too_few_others() -> None:
    _, history = with_points([[5.0], [5.0], [5.0], [0.0]])
    plan = Plan(space=SPACE, trials=4, steps=100)
    for one, stopped in (
        (MedianStopping(plan=plan, every=10, grace=11), False),
        (MedianStopping(plan=plan, every=10, min_trials=4), False),
        (MedianStopping(plan=plan, every=10, grace=10, min_trials=3), True),
    ):
        assert any(isinstance(decision, Stop) for decision in one.ask(history)) == stopped


def test_the_median_rule_saves_steps_and_keeps_the_best() -> None:
    plan = Plan(space=SPACE, trials=30, steps=STEPS)
    done = simulate(MedianStopping(plan=plan), lambda one, _: Curve(one, measured), jobs=4)
    winner = best(done.history)
    assert winner is not None
    whole = max(true_score(one.settings, STEPS) for one in done.history)
    assert true_score(winner.settings, STEPS) > 0.98 * whole
    assert done.steps < 0.75 * 30 * STEPS
    assert any(one.state == "stopped" for one in done.history)
