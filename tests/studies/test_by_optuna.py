"""Optuna's samplers from a history: as good as Optuna's own loop, fast, and the same each time."""

from __future__ import annotations

import dataclasses
import math
import time

import numpy as np
import pytest

from equipoise.studies.best import best
from equipoise.studies.history import History, Result, Start
from equipoise.studies.space import Choice, Settings, read_space
from equipoise.studies.strategies import strategy_of
from equipoise.studies.strategies.by_optuna import ByOptuna, distribution, frozen_trials
from equipoise.studies.strategy import Plan
from tests.studies.simulated import Curve, simulate

optuna = pytest.importorskip("optuna")
pytest.importorskip("cmaes")


def sphere(settings: Settings) -> float:
    return -sum((float(value) - 0.3) ** 2 for value in settings.values())


def branin(settings: Settings) -> float:
    x, y = float(settings["x"]), float(settings["y"])
    valley = (y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6) ** 2
    return -(valley + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10)


def rates(settings: Settings) -> float:
    lr, units = math.log10(float(settings["lr"])), math.log2(float(settings["units"]))
    penalty = {"tanh": 0.0, "relu": 0.5, "gelu": 1.0}[str(settings["act"])]
    return -((lr + 3.3) ** 2) - 0.3 * (units - 6) ** 2 - penalty


FUNCTIONS = {
    "sphere": (sphere, ["a=-1.0..1", "b=-1.0..1", "c=-1.0..1"]),
    "branin": (branin, ["x=-5.0..10", "y=0.0..15"]),
    "rates": (rates, ["lr=log:1e-5..1e-1", "units=log:4..512", "act=tanh,relu,gelu"]),
}
TRIALS, SEEDS = 60, 20


def ours(function: str, sampler: str, seed: int) -> float:
    """Return the best score of a study of ours."""
    score, space = FUNCTIONS[function]
    plan = Plan(space=read_space(space), trials=TRIALS, steps=10, seed=seed)
    name, settings = ("random", []) if sampler == "random" else ("optuna", [f"sampler={sampler}"])
    strategy = strategy_of(name, plan, settings)
    done = simulate(strategy, lambda one, _: Curve(one, lambda x, steps: score(x)), pure=False)
    winner = best(done.history)
    assert winner is not None and winner.score is not None
    return winner.score


def of_optuna(function: str, sampler: str, seed: int) -> float:
    """Return the best score of Optuna's own loop."""
    score, texts = FUNCTIONS[function]
    space = read_space(texts)
    sampler_of = {
        "tpe": optuna.samplers.TPESampler,
        "random": optuna.samplers.RandomSampler,
        "cmaes": optuna.samplers.CmaEsSampler,
    }
    study = optuna.create_study(direction="maximize", sampler=sampler_of[sampler](seed=seed))
    for _ in range(TRIALS):
        trial = study.ask({one.key: distribution(one) for one in space})
        settings = {
            one.key: one.values[trial.params[one.key]]
            if isinstance(one, Choice)
            else trial.params[one.key]
            for one in space
        }
        study.tell(trial, score(settings))
    return float(study.best_value)


@pytest.mark.thorough
@pytest.mark.parametrize("sampler", ["random", "tpe", "cmaes"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_sampler_is_as_good_as_in_optunas_own_loop(function: str, sampler: str) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    mine = np.array([ours(function, sampler, seed) for seed in range(SEEDS)])
    peer = np.array([of_optuna(function, sampler, seed) for seed in range(SEEDS)])
    noise = math.hypot(mine.std(ddof=1), peer.std(ddof=1)) / math.sqrt(SEEDS)
    assert mine.mean() > peer.mean() - 2.5 * noise, (mine.mean(), peer.mean(), noise)


def grown(strategy: ByOptuna, count: int) -> History:
    """Return a history with ``count`` trials that have ended."""
    history = History(jobs=1)
    rng = np.random.default_rng(0)
    for number in range(count):
        settings = strategy.plan.space.sample(rng)
        name = f"trial_{number:04d}"
        history.add(Start(trial=name, settings=settings, to=10, reason="drawn"))
        score = rates(settings)
        history.add(Result(trial=name, steps=10, state="paused", score=score))
    return history


def test_a_thousand_trials_are_told_within_seconds() -> None:
    plan = Plan(space=read_space(FUNCTIONS["rates"][1]), trials=2000, steps=10)
    strategy = ByOptuna(plan=plan)
    history = grown(strategy, 1000)
    strategy.ask(History(jobs=1))  # imports
    begun = time.process_time()
    (decision,) = strategy.ask(history)
    assert time.process_time() - begun < 5
    assert isinstance(decision, Start) and plan.space.holds(decision.settings)
    assert rates(decision.settings) > np.median([one.score or 0 for one in history])


@pytest.mark.thorough
def test_generations_are_the_same_with_and_without_what_is_kept() -> None:
    plan = Plan(space=read_space(FUNCTIONS["sphere"][1]), trials=70, steps=10, seed=3)

    def settings(*, kept: bool) -> list[Settings]:
        history, strategy = History(jobs=3), ByOptuna(plan=plan, sampler="cmaes")
        while decisions := strategy.ask(history):
            for one in decisions:
                history.add(one)
                assert isinstance(one, Start)
            for trial in list(history.training):
                score = sphere(trial.settings)
                history.add(Result(trial=trial.name, steps=10, state="paused", score=score))
            if not kept:
                strategy = dataclasses.replace(strategy)
        return [one.settings for one in history]

    assert settings(kept=True) == settings(kept=False)
    # an object that has seen another history begins again
    plan = dataclasses.replace(plan, space=read_space(FUNCTIONS["rates"][1]))
    strategy = ByOptuna(plan=plan, sampler="cmaes")
    for count in (14, 7, 21):
        history = grown(strategy, count)
        assert strategy.ask(history) == dataclasses.replace(strategy).ask(history)


def test_what_trains_is_known_to_the_sampler() -> None:
    plan = Plan(space=read_space(["x=0.0..1"]), trials=100, steps=10)
    strategy = ByOptuna(plan=plan)
    history = grown_on(strategy, 30)
    history.jobs = 8
    found = [float(one.settings["x"]) for one in strategy.ask(history) if isinstance(one, Start)]
    assert len(found) == 8 and len({round(one, 6) for one in found}) == 8
    assert strategy.ask(history) == dataclasses.replace(strategy).ask(history)


def grown_on(strategy: ByOptuna, count: int) -> History:
    history = History(jobs=1)
    for _ in range(count):
        (one,) = strategy.ask(history)
        assert isinstance(one, Start)
        history.add(one)
        score = sphere(one.settings)
        history.add(Result(trial=one.trial, steps=10, state="paused", score=score))
    return history


def test_a_trial_is_told_by_its_state_and_a_failed_one_has_the_worst_score() -> None:
    plan = Plan(space=read_space(["x=0.0..1"]), trials=5, steps=10)
    history = History(jobs=5)
    for number in range(4):
        to = 5 if number == 2 else 10
        settings = {"x": number / 4}
        history.add(Start(trial=f"trial_{number}", settings=settings, to=to, reason="drawn"))
    history.add(Result(trial="trial_0", steps=10, state="paused", score=3.0))
    history.add(Result(trial="trial_1", steps=4, state="failed"))
    history.add(Result(trial="trial_2", steps=5, state="paused", score=7.0))
    found = [
        (one.state.name, one.values, one.params["x"]) for one in frozen_trials(plan, history.of())
    ]
    assert found == [
        ("COMPLETE", [3.0], 0.0),
        ("COMPLETE", [3.0], 0.25),
        ("PRUNED", None, 0.5),
        ("RUNNING", None, 0.75),
    ]


def test_brackets_of_hyperband_begin_at_different_rungs() -> None:
    plan = Plan(space=read_space(["x=0.0..1"]), trials=50, steps=2700)
    starts = ByOptuna(plan=plan, pruning="hyperband").ask(History(jobs=50))
    first = [one.to for one in starts if isinstance(one, Start)]
    assert sorted(set(first)) == [100, 300, 900, 2700]
    assert first.count(100) > first.count(300) > first.count(900) >= first.count(2700) > 0


def test_optuna_prints_nothing_and_its_log_level_stays(capfd: pytest.CaptureFixture[str]) -> None:
    optuna.logging.set_verbosity(optuna.logging.INFO)
    plan = Plan(space=read_space(["x=0.0..1"]), trials=2, steps=10)
    ByOptuna(plan=plan).ask(History(jobs=2))
    assert optuna.logging.get_verbosity() == optuna.logging.INFO
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


@pytest.mark.thorough
def test_the_gaussian_process_of_optuna_comes_near_the_optimum() -> None:
    plan = Plan(space=read_space(["x=0.0..1", "y=0.0..1"]), trials=18, steps=10)
    strategy = ByOptuna(plan=plan, sampler="gp")
    done = simulate(strategy, lambda one, _: Curve(one, lambda x, _: sphere(x)), pure=False)
    winner = best(done.history)
    assert winner is not None and winner.score is not None and winner.score > -0.005
    assert (
        simulate(strategy, lambda one, _: Curve(one, lambda x, _: sphere(x)), pure=False).decisions
        == done.decisions
    )
