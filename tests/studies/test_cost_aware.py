"""Cost-aware search: cheap trials first, and what that saves in core-seconds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from equipoise.studies.gp import GaussianProcess
from equipoise.studies.history import GoOn, History, Result, Start
from equipoise.studies.space import Settings, read_space
from equipoise.studies.strategies import strategy_of
from equipoise.studies.strategies.cost_aware import CostAware, expected_improvement
from equipoise.studies.strategy import Plan
from tests.studies.simulated import Curve, simulate

SPACE = read_space(["lr=log:1e-5..1e-1", "units=log:16..512"])
STEPS = 2000


def score(settings: Settings, steps: int) -> float:
    lr, units = math.log10(float(settings["lr"])), math.log2(float(settings["units"]))
    height = 100 - 8 * (lr + 3) ** 2 - 1.5 * (units - 6.5) ** 2
    return height * (1 - math.exp(-steps / 400))


def speed(settings: Settings) -> float:
    """Return env steps in a second: the largest network is ten times slower than the smallest."""
    return 10 * (16 / float(settings["units"])) ** (math.log(10) / math.log(32))


class Reached(Exception):
    """The end of a study whose score is high enough."""


def core_seconds(name: str, seed: int, enough: float = math.inf) -> tuple[float, float]:
    """Return the core-seconds of a study until a score is ``enough``, and its best score."""
    spent, best = 0.0, -math.inf

    class Counted(Curve):
        steps = 0

        def train(self, steps: int) -> float:
            nonlocal spent, best
            spent += (steps - self.steps) / speed(self.settings)
            self.steps, found = steps, score(self.settings, steps)
            best = max(best, found)
            if found >= enough:
                raise Reached
            return found

    strategy = strategy_of(name, Plan(space=SPACE, trials=24, steps=STEPS, seed=seed))
    try:
        simulate(strategy, lambda one, _: Counted(one, score), speed=speed, pure=False)
    except Reached:
        pass
    else:
        assert enough == math.inf, "the score was not reached"
    return spent, best


@pytest.mark.thorough
def test_half_of_the_core_seconds_of_random_search_reach_its_score() -> None:
    pytest.importorskip("sklearn")
    parts = []
    for seed in range(8):
        spent, enough = core_seconds("random", seed)
        parts.append(core_seconds("cost_aware", seed, enough)[0] / spent)
    assert np.median(parts) <= 0.5, parts


@pytest.mark.thorough
def test_of_two_settings_alike_in_score_the_cheaper_one_is_tried() -> None:
    pytest.importorskip("sklearn")
    plan = Plan(space=read_space(["x=0.0..1"]), trials=40, steps=100)
    strategy, history = CostAware(plan=plan, every=100), History(jobs=1)
    for number, x in enumerate([0.0, 0.2, 0.4, 0.6, 0.8, 1.0]):
        name = f"trial_{number:04d}"
        history.add(Start(trial=name, settings={"x": x}, to=100, reason="given"))
        # the scores are symmetric, and the seconds of the right half are a hundred times as many
        points, seconds = -((x - 0.5) ** 2), 1.0 if x < 0.5 else 100.0
        result = Result(trial=name, steps=100, state="paused", score=points, core_seconds=seconds)
        history.add(result)
    (one,) = strategy.ask(history)
    assert isinstance(one, Start) and 0.2 < float(one.settings["x"]) < 0.5
    assert "core-seconds" in one.reason


@pytest.mark.thorough
def test_a_promising_paused_trial_goes_on() -> None:
    pytest.importorskip("sklearn")
    plan = Plan(space=read_space(["x=0.0..1"]), trials=4, steps=100)
    strategy, history = CostAware(plan=plan, every=50), History(jobs=1)
    for number, x in enumerate([0.1, 0.3, 0.5, 0.9]):
        name = f"trial_{number:04d}"
        history.add(Start(trial=name, settings={"x": x}, to=50, reason="given"))
        history.add(Result(trial=name, steps=50, state="paused", score=x, core_seconds=1.0))
    (one,) = strategy.ask(history)
    assert isinstance(one, GoOn) and (one.trial, one.to) == ("trial_0003", 100)


def test_the_expected_improvement_is_that_of_a_normal_variable() -> None:
    drawn = np.random.default_rng(0).normal(1.0, 2.0, 400_000)
    found = expected_improvement(np.array([1.0, 0.0, 5.0]), np.array([2.0, 0.0, 0.0]), 1.5)
    assert found == pytest.approx([np.maximum(drawn - 1.5, 0).mean(), 0.0, 3.5], abs=0.01)


def test_the_first_trials_are_random_and_take_one_stretch() -> None:
    pytest.importorskip("sklearn")
    starts = CostAware(plan=Plan(space=SPACE, trials=9, steps=STEPS)).ask(History(jobs=9))
    assert [one.trial for one in starts] == [f"trial_{i:04d}" for i in range(4)]
    assert {one.to for one in starts if isinstance(one, Start)} == {500}


def test_the_deviation_of_a_mean_is_below_the_noise_of_what_was_measured() -> None:
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    measured = [([x], 10 * x + float(rng.normal(0, 3))) for x in np.linspace(0, 1, 60).tolist()]
    process = GaussianProcess(measured, seed=0)
    mean, deviation = process.at([[0.2], [0.8]])
    assert mean == pytest.approx([2, 8], abs=3) and max(deviation) < 1.5
    believed = process.believing([[0.8]] * 20).at([[0.8]])[1]
    assert believed[0] < deviation[1]
