"""Population based training: the toy of its paper, its decisions, and the changes of settings."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest

from equipoise.studies.best import best
from equipoise.studies.history import Clone, Decision, GoOn, History, Result, Start, Stop
from equipoise.studies.space import Choice, Range, Settings, read_space
from equipoise.studies.strategies import strategy_of
from equipoise.studies.strategies.pb2 import PB2
from equipoise.studies.strategies.pbt import PBT, perturbed
from equipoise.studies.strategy import Plan
from tests.studies.simulated import Curve, simulate


@dataclass
class Surrogate:
    """Section 4.3 of arXiv:1711.09846: gradient steps on 1.2 - h . theta^2 in place of
    1.2 - theta^2, with h = (1, 0) or (0, 1).
    """

    settings: Settings
    theta: tuple[float, float] = (0.9, 0.9)
    steps: int = 0

    def train(self, steps: int) -> float:
        weights = [float(one) for one in str(self.settings["h"]).split()]
        for _ in range(steps - self.steps):
            first, second = (t - 0.02 * 2 * h * t for t, h in zip(self.theta, weights))
            self.theta = (first, second)
        self.steps = steps
        return 1.2 - sum(t**2 for t in self.theta)


def final_score(name: str, seed: int, *settings: str) -> float:
    plan = Plan(space=read_space(["h=1 0,0 1"]), trials=2, steps=400, seed=seed)
    strategy = strategy_of(name, plan, settings)
    done = simulate(strategy, lambda one, _: Surrogate(one), jobs=2, pure=False)
    winner = best(done.history)
    assert winner is not None and winner.score is not None and winner.steps == 400
    return winner.score


def test_a_population_solves_the_toy_that_no_fixed_settings_solve() -> None:
    assert final_score("grid", 0) == pytest.approx(0.39, abs=1e-4)
    assert min(final_score("pbt", seed, "every=20") for seed in range(20)) >= 1.19


def population(**settings: float) -> PBT:
    plan = Plan(space=read_space(["lr=log:1e-4..1e-1"]), trials=4, steps=100)
    return PBT(plan=plan, every=50, **settings)


def advanced(history: History, strategy: PBT, scores: dict[str, float | None]) -> list[Decision]:
    """Carry out the next decisions, end all training with these scores -> the next ones."""
    for one in strategy.ask(history):
        history.add(one)
    for trial in list(history.training):
        score = scores[trial.name]
        result = Result(trial=trial.name, steps=trial.target, state="paused", score=score)
        history.add(replace(result, state="failed") if score is None else result)
    return strategy.ask(history)


def test_the_worst_quarter_is_replaced_by_copies_of_the_best() -> None:
    history, strategy = History(jobs=4), population()
    decisions = advanced(
        history, strategy, {f"member_{i}_g0": score for i, score in enumerate([3.0, 1.0, 2.0, 4.0])}
    )
    assert [(type(one), one.trial) for one in decisions] == [
        (Stop, "member_1_g0"),
        (Clone, "member_1_g1"),
        (GoOn, "member_0_g0"),
        (GoOn, "member_2_g0"),
        (GoOn, "member_3_g0"),
    ]
    clone = decisions[1]
    assert isinstance(clone, Clone) and clone.source == "member_3_g0" and clone.to == 100
    assert clone.reason == (
        "the score 1 of member_1_g0 at 50 steps is among the worst 1 of 4; member_3_g0 has 4"
    )


def test_with_one_job_copies_are_taken_before_their_source_goes_on() -> None:
    history, strategy = History(jobs=1), population(quantile=0.5)
    names = []
    for _ in range(8):
        decisions = strategy.ask(history)
        for one in decisions:
            history.add(one)
        (trial,) = history.training
        names.append(trial.name)
        scores = {"member_0": 1.0, "member_1": 2.0, "member_2": 3.0, "member_3": 4.0}
        history.add(
            Result(
                trial=trial.name, steps=trial.target, state="paused", score=scores[trial.name[:8]]
            )
        )
    assert names[:4] == [f"member_{i}_g0" for i in range(4)]
    assert set(names[4:6]) == {"member_0_g1", "member_1_g1"}
    assert names[6:] == ["member_2_g0", "member_3_g0"]
    assert strategy.ask(history) == []


def test_a_member_that_failed_is_replaced_and_never_copied() -> None:
    history, strategy = History(jobs=4), population()
    scores = {f"member_{i}_g0": score for i, score in enumerate([None, None, 2.0, 4.0])}
    decisions = advanced(history, strategy, scores)
    clones = [one for one in decisions if isinstance(one, Clone)]
    assert {one.trial for one in clones} == {"member_0_g1", "member_1_g1"}
    assert {one.source for one in clones} == {"member_3_g0"}
    assert not any(isinstance(one, Stop) for one in decisions)


def test_a_member_that_failed_is_not_copied_even_among_the_best() -> None:
    scores = {f"member_{i}_g0": score for i, score in enumerate([None, None, None, 4.0])}
    decisions = advanced(History(jobs=4), population(quantile=0.5), scores)
    assert {one.source for one in decisions if isinstance(one, Clone)} == {"member_3_g0"}


def test_a_member_that_fails_in_a_generation_is_replaced_at_its_end() -> None:
    plan = Plan(space=read_space(["lr=log:1e-4..1e-1"]), trials=4, steps=150)
    history, strategy = History(jobs=4), PBT(plan=plan, every=50)
    scores: dict[str, float | None] = {
        f"member_{i}_g0": score for i, score in enumerate([3.0, 1.0, 2.0, 4.0])
    }
    for one in advanced(history, strategy, scores):
        history.add(one)
    history.add(Result(trial="member_0_g0", steps=60, state="failed"))
    assert strategy.ask(history) == []
    for trial in list(history.training):
        history.add(Result(trial=trial.name, steps=100, state="paused", score=5.0))
    clones = [one.trial for one in strategy.ask(history) if isinstance(one, Clone)]
    assert clones == ["member_0_g2"]


def test_a_population_without_any_result_ends() -> None:
    history = History(jobs=4)
    assert advanced(history, population(), {f"member_{i}_g0": None for i in range(4)}) == []


def test_the_first_settings_cover_the_ranges() -> None:
    plan = Plan(space=read_space(["x=0.0..1", "c=a,b,c,d"]), trials=8, steps=10)
    starts = PBT(plan=plan).ask(History(jobs=8))
    settings = [one.settings for one in starts if isinstance(one, Start)]
    assert sorted(int(float(one["x"]) * 8) for one in settings) == list(range(8))
    assert Counter(one["c"] for one in settings) == dict.fromkeys("abcd", 2)


@pytest.mark.parametrize(
    ("one", "value", "expected"),
    [
        (Range("x", 0, 1), 0.5, [0.4, 0.6]),
        (Range("x", 0, 1), 1.0, [0.8, 1.0]),
        (Range("x", 0.45, 1, "log"), 0.5, [0.45, 0.6]),
        (Range("x", -1, 1), -0.5, [-0.4, -0.6]),
        (Range("x", 1, 100, whole=True), 50, [40, 60]),
        (Range("x", 1, 100, whole=True), 2, [1, 3]),
        (Range("x", 1, 100, whole=True), 1, [1, 2]),
        (Choice("x", ("a", "b", "c")), "a", ["b"]),
        (Choice("x", ("a", "b", "c")), "b", ["a", "c"]),
        (Choice("x", ("a", "b", "c")), "c", ["b"]),
        (Choice("x", ("a",)), "a", ["a"]),
        (Choice("x", (1, True)), True, [1]),
    ],
    ids=str,
)
@pytest.mark.few(12)
def test_a_change_stays_within_the_range(one, value, expected) -> None:
    rng = np.random.default_rng(0)
    found = {perturbed(one, value, rng) for _ in range(40)}
    texts = isinstance(value, str)
    assert sorted(found) == (sorted(expected) if texts else pytest.approx(sorted(expected)))
    assert all(one.holds(value) for value in found)


@pytest.mark.parametrize("name", ["pbt", "pb2"])
@pytest.mark.thorough
def test_changes_never_leave_the_space(name: str) -> None:
    if name == "pb2":
        pytest.importorskip("sklearn")
    space = read_space(["lr=log:1e-4..1e-3", "n=1..3", "x=-1.0..1", "c=a,b"])
    strategy = strategy_of(name, Plan(space=space, trials=6, steps=600, seed=1), ["resample=0.1"])
    done = simulate(strategy, lambda one, _: Curve(one, lambda one, steps: 1.0), jobs=6)
    clones = [one for one in done.history if one.parent]
    assert len(clones) > 8 and all(space.holds(one.settings) for one in clones)


@pytest.mark.thorough
def test_pb2_finds_the_settings_that_learn_the_fastest() -> None:
    pytest.importorskip("sklearn")

    @dataclass
    class Climber:
        settings: Settings
        score: float = 0.0
        steps: int = 0

        def train(self, steps: int) -> float:
            speed = 1 - (float(self.settings["x"]) - 0.7) ** 2 * 4
            self.score += speed * (steps - self.steps)
            self.steps = steps
            return self.score

    def final(name: str, seed: int) -> float:
        plan = Plan(space=read_space(["x=0.0..1"]), trials=4, steps=100, seed=seed)
        done = simulate(strategy_of(name, plan), lambda one, _: Climber(one), jobs=4, pure=False)
        winner = best(done.history)
        assert winner is not None and winner.score is not None
        return winner.score

    seeds = range(5)
    assert np.median([final("pb2", seed) for seed in seeds]) > 92
    assert np.mean([final("pb2", seed) for seed in seeds]) > np.mean(
        [final("pbt", seed) for seed in seeds]
    )


@pytest.mark.thorough
def test_pb2_chooses_in_one_generation_settings_that_differ() -> None:
    pytest.importorskip("sklearn")
    plan = Plan(space=read_space(["x=0.0..1"]), trials=8, steps=40)
    history, strategy = History(jobs=8), PB2(plan=plan, every=10)
    for generation in itertools.count(1):
        for one in strategy.ask(history):
            history.add(one)
        for trial in list(history.training):
            score = (trial.score or 0) + float(trial.settings["x"])
            history.add(Result(trial=trial.name, steps=trial.target, state="paused", score=score))
        if generation == 2:
            break
    clones = [one for one in strategy.ask(history) if isinstance(one, Clone)]
    assert len({round(float(one.settings["x"]), 3) for one in clones}) == len(clones) == 2
