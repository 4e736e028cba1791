"""Every strategy ends, is pure and asks for nothing forbidden, whatever its trials do."""

from __future__ import annotations

import math

import pytest

from equipoise.studies.best import best
from equipoise.studies.history import History, Result
from equipoise.studies.space import Settings, read_space
from equipoise.studies.strategies import STRATEGIES, strategy_of
from equipoise.studies.strategies.confirmed import Confirmed
from equipoise.studies.strategy import Plan
from tests.studies.simulated import Curve, Failure, simulate

SPACE = ("lr=log:1e-5..1e-2", "units=16..256", "act=tanh,relu,gelu", "norm=true,false")
NEEDS = {
    "optuna": "optuna",
    "optuna pruning=hyperband": "optuna",
    "optuna sampler=cmaes": "cmaes",
    "optuna sampler=random": "optuna",
    "cost_aware": "sklearn",
    "pb2": "sklearn",
}
NAMES = sorted({*STRATEGIES, *NEEDS} - {"cells"}, key=lambda name: (name in NEEDS, name))
QUICK = len(NAMES) - len(NEEDS)  # the first ones need no package
NAN, INF = math.nan, math.inf


def made(name: str, space: tuple[str, ...] = SPACE, trials: int = 8, steps: int = 1000):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    name, *settings = name.split()
    if name == "seeds":
        space = ()
    if name == "grid":
        trials, settings = max(trials, 4), ["points=1"]
        space = space[-1:]
    return strategy_of(name, Plan(space=read_space(space), trials=trials, steps=steps), settings)


def score(settings: Settings, steps: int) -> float:
    lr = math.log10(float(settings.get("lr", 1e-3)))
    return (1 - math.exp(-steps / 300)) * (10 - (lr + 3) ** 2)


def speed(settings: Settings) -> float:
    return 1 + float(settings.get("units", 0)) / 100


@pytest.mark.few(QUICK)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("jobs", [1, 2, 7])
def test_every_strategy_ends_with_a_whole_trial(name: str, jobs: int) -> None:
    strategy = made(name)
    done = simulate(strategy, lambda one, _: Curve(one, score), jobs=jobs, speed=speed)
    winner = best(done.history)
    assert winner is not None and winner.steps == 1000
    assert all(one.state != "training" for one in done.history)
    again = simulate(made(name), lambda one, _: Curve(one, score), jobs=jobs, speed=speed)
    assert again.decisions == done.decisions


@pytest.mark.few(QUICK)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("jobs", [1, 3])
def test_failures_do_not_block_a_strategy(name: str, jobs: int) -> None:
    class Failing(Curve):
        def train(self, steps: int) -> float | None:
            if self.fails and steps > 300:
                raise Failure
            return super().train(steps)

        fails = False

    count = 0

    def learner(settings: Settings, _: str) -> Curve:
        nonlocal count
        one = Failing(settings, score)
        one.fails, count = count % 3 == 0, count + 1
        return one

    done = simulate(made(name, trials=9), learner, jobs=jobs, speed=speed)
    assert any(one.state == "failed" for one in done.history)
    winner = best(done.history)
    assert winner is not None and winner.steps == 1000


@pytest.mark.few(QUICK)
@pytest.mark.parametrize("name", NAMES)
def test_a_study_whose_trials_all_fail_ends(name: str) -> None:
    def fail(settings: Settings, steps: int) -> float:
        raise Failure

    done = simulate(made(name), lambda one, _: Curve(one, fail), jobs=3)
    assert len(done.history.of()) == (4 if name == "grid" else 8) or name == "grid"
    assert best(done.history) is None


@pytest.mark.few(QUICK)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "scores",
    [[NAN], [None], [INF], [-INF], [0.0], [1.0, NAN, None, -INF, INF, 2.0]],
    ids=["nan", "none", "inf", "minus inf", "equal", "mixed"],
)
def test_odd_scores_do_not_break_a_strategy(name: str, scores: list[float | None]) -> None:
    count = 0

    def odd(settings: Settings, steps: int) -> float | None:
        nonlocal count
        count += 1
        return scores[count % len(scores)]

    done = simulate(made(name), lambda one, _: Curve(one, odd), jobs=2)
    winner = best(done.history)
    if winner is not None:
        assert winner.score in (0.0, 1.0, 2.0)


@pytest.mark.few(QUICK)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("space", "trials"),
    [(SPACE, 1), (("act=tanh",), 4), (("n=1..2", "act=a,b"), 5), (("x=0..1.0",), 4)],
)
def test_small_spaces_and_single_trials(name: str, space: tuple[str, ...], trials: int) -> None:
    strategy = made(name, space, trials)
    done = simulate(strategy, lambda one, _: Curve(one, score), jobs=2)
    winner = best(done.history)
    assert winner is not None and winner.steps == 1000


@pytest.mark.few(QUICK)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [1, 7, 1000])
def test_stretches_that_end_late(name: str, steps: int) -> None:
    strategy = made(name, steps=steps)
    done = simulate(strategy, lambda one, _: Curve(one, score), jobs=3, late=5)
    winner = best(done.history)
    assert winner is not None and winner.steps >= steps


@pytest.mark.few(QUICK)
@pytest.mark.parametrize("name", NAMES)
def test_trials_that_ended_by_an_alarm_do_not_go_on(name: str) -> None:
    strategy = made(name)
    seen: set[str] = set()

    def good(settings: Settings, steps: int) -> float:
        return score(settings, steps)

    done = simulate(
        strategy,
        lambda one, _: Curve(one, good),
        jobs=2,
        alarm=lambda trial: trial.endswith(("1", "1_g0")),
    )
    for one in done.history:
        if one.alarms:
            seen.add(one.name)
            assert one.state == "done"
        assert one.parent not in seen
    assert seen or name == "seeds"
    winner = best(done.history)
    assert winner is not None and winner.name not in seen


def test_a_confirmation_begins_when_the_search_is_over() -> None:
    strategy = Confirmed(inner=made("random"), seeds=3)
    done = simulate(strategy, lambda one, _: Curve(one, score), jobs=2, speed=speed)
    winner = best(done.history)
    confirmed = done.history.of(role="confirm")
    assert winner is not None and winner.role == "search"
    assert [one.seed for one in confirmed] == [1, 2, 3]
    assert all(one.settings == winner.settings and one.steps == 1000 for one in confirmed)
    names = list(done.history.trials)
    assert names[-3:] == [one.name for one in confirmed] and len(names) == 11


def test_no_confirmation_begins_while_a_search_trains() -> None:
    strategy = Confirmed(inner=made("random", trials=2), seeds=3)
    history = History(jobs=2)
    for one in strategy.ask(history):
        history.add(one)
    history.add(Result(trial="trial_0000", steps=1000, state="paused", score=1.0))
    assert strategy.ask(history) == []
    history.add(Result(trial="trial_0001", steps=1000, state="paused", score=2.0))
    assert [one.trial for one in strategy.ask(history)] == ["confirm_0", "confirm_1"]


def test_a_confirmation_of_seeds_takes_others() -> None:
    strategy = Confirmed(inner=made("seeds", trials=2), seeds=2)
    done = simulate(strategy, lambda one, _: Curve(one, score))
    assert [one.seed for one in done.history] == [0, 1, 2, 3]


def test_nothing_is_confirmed_if_nothing_has_a_score() -> None:
    strategy = Confirmed(inner=made("random"), seeds=2)
    done = simulate(strategy, lambda one, _: Curve(one, lambda settings, steps: NAN))
    assert done.history.of(role="confirm") == []


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["pbt", "pb2"])
def test_the_number_of_jobs_does_not_change_a_population(name: str) -> None:
    def trials(jobs: int) -> dict[str, tuple[Settings, float | None]]:
        done = simulate(made(name), lambda one, _: Curve(one, score), jobs=jobs, speed=speed)
        return {one.name: (one.settings, one.score) for one in done.history}

    assert trials(1) == trials(3) == trials(8)
