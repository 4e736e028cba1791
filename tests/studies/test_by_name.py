"""Strategies by name: their settings as texts, classes of users, and packages that are missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from equipoise import trust
from equipoise.facts import facts
from equipoise.studies.history import History
from equipoise.studies.space import Space, read_space
from equipoise.studies.strategies import STRATEGIES, strategy_class, strategy_of
from equipoise.studies.strategies.asha import ASHA
from equipoise.studies.strategies.grid import Grid
from equipoise.studies.strategies.pbt import PBT
from equipoise.studies.strategies.seeds import Seeds
from equipoise.studies.strategy import Plan
from tests.studies.simulated import Curve, simulate

PLAN = Plan(space=read_space(["lr=log:1e-5..1e-2", "n=1..9"]), trials=20, steps=1000)
OWN = """
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from equipoise.facts import Help, PositiveInt
from equipoise.studies.history import Decision, History, Start
from equipoise.studies.strategy import Plan


@dataclass(frozen=True, kw_only=True)
class Halves:
    plan: Plan
    parts: Annotated[PositiveInt, Help("Parts of the cube")] = 2
    needs_results = False
    changes_settings = False

    def ask(self, history: History) -> list[Decision]:
        number = len(history.of())
        if number >= self.parts or not history.free:
            return []
        settings = self.plan.space.at([(number + 0.5) / self.parts] * len(self.plan.space))
        return [Start(trial=f"part_{number}", settings=settings, to=self.plan.steps, reason="next")]


NO_STRATEGY = 3
"""


def test_every_name_is_a_strategy_with_described_settings() -> None:
    for name in STRATEGIES:
        found = facts(strategy_class(name))
        assert next(iter(found)) == "plan"
        assert all(fact.help for key, fact in found.items() if key != "plan"), name


def test_settings_are_read_by_their_types() -> None:
    assert strategy_of("asha", PLAN, ["reduction=4", "first_rung=1e2"]) == ASHA(
        plan=PLAN, reduction=4, first_rung=100
    )
    assert strategy_of("pbt", PLAN, ["quantile=.5", "every=10k"]) == PBT(
        plan=PLAN, quantile=0.5, every=10_000
    )
    assert strategy_class("cost-aware") is strategy_class("cost_aware")


@pytest.mark.few(20)
@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("ashe", "", r"strategy: unknown name 'ashe'; did you mean 'asha'\?"),
        ("", "", "strategy: unknown name ''"),
        ("asha", "reductoin=4", r"strategy asha: unknown setting .* did you mean 'reduction'\?"),
        ("asha", "plan=4", "unknown setting 'plan'"),
        ("asha", "reduction=1", r"reduction: expected 2 to 1000, got 1"),
        ("asha", "reduction=2.5", r"asha.reduction: expected a whole number, got '2.5'"),
        ("asha", "reduction", "expected KEY=VALUE"),
        ("pbt", "quantile=0.6", r"quantile: expected more than 0 and at most 0.5, got 0.6"),
        ("pbt", "resample=nan", r"pbt.resample: expected a number, got 'nan'"),
        ("optuna", "sampler=tpee", r"sampler: .*did you mean 'tpe'\?"),
        ("optuna", "pruning=hyperband,sampler=cmaes", "must be none with sampler=cmaes"),
        ("grid", "points=7", r"at most as many combinations as trials \(20\), got 49; try"),
        ("seeds", "", "Seeds: must have no space, got one of 2 settings"),
        ("nowhere:Class", "", "nowhere"),
        ("os:system", "", "--trust os:system"),
    ],
)
def test_a_mistake_is_one_sentence(name: str, setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        strategy_of(name, PLAN, setting.split(",") if setting else [])
    assert "\n" not in str(error.value)


def test_a_search_without_a_space_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ASHA: must have a space of at least one setting"):
        strategy_of("asha", Plan(space=Space(), trials=2, steps=10))
    plan = Plan(space=Space(), trials=2, steps=10, seed=4)
    names = [one.trial for one in Seeds(plan=plan).ask(History(jobs=3))]
    assert names == ["seed_4", "seed_5"]


def test_a_grid_has_every_combination_once() -> None:
    grid = Grid(plan=PLAN, points=4)
    done = simulate(grid, lambda one, _: Curve(one, lambda settings, steps: 1.0), jobs=3)
    cells = [tuple(one.settings.values()) for one in done.history]
    assert len(set(cells)) == len(cells) == 16
    assert {lr for lr, _ in cells} == {PLAN.space.parameters[0].at(i / 3) for i in range(4)}


def test_a_strategy_of_a_user_runs_if_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_own_strategy.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    name = "my_own_strategy:Halves"
    with pytest.raises(trust.Untrusted, match=r"would be imported from .*--trust my_own_strategy"):
        strategy_of(name, PLAN)
    assert "my_own_strategy" not in sys.modules
    try:
        strategy = strategy_of(name, PLAN, ["parts=3"], trusted=["my_own_strategy"])
        done = simulate(strategy, lambda one, _: Curve(one, lambda settings, steps: 1.0))
        assert [one.name for one in done.history] == ["part_0", "part_1", "part_2"]
        with pytest.raises(ValueError, match=r"parts: expected at least 1, got 0"):
            strategy_of(name, PLAN, ["parts=0"], trusted=[name])
        with pytest.raises(ValueError, match="must be a dataclass with a field 'plan', got 3"):
            strategy_of("my_own_strategy:NO_STRATEGY", PLAN, trusted=["my_own_strategy"])
    finally:
        sys.modules.pop("my_own_strategy", None)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", ["optuna", "optuna sampler=cmaes", "pb2", "cost_aware"])
def test_a_missing_package_is_one_sentence_with_its_installation(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in ("optuna", "sklearn"):
        monkeypatch.setitem(sys.modules, one, None)
    name, *settings = name.split()
    with pytest.raises(ImportError, match=r"needs the package (optuna|sklearn): .*install "):
        strategy_of(name, PLAN, settings)
