"""``placement.text=auto``: the plans that are compared, the costs that are measured, the plan that
is taken.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise import api
from equipoise.actors.engine.sim_engine import Latency, SimEngine
from equipoise.balance.placement.choice import forecast
from equipoise.balance.placement.costs import Costs
from equipoise.errors import WorkerFailed
from equipoise.plans.blueprint import Blueprint
from equipoise.runtime.session import Interrupt
from equipoise.tree import zeros
from equipoise.tuning import text_costs, text_placement
from equipoise.tuning.race import Race
from equipoise.tuning.text_costs import WatchedEngine
from equipoise.tuning.text_placement import (
    Candidate,
    Measured,
    candidates,
    decided,
    forecasts,
    shortlist,
)
from equipoise.types import Program
from tests.runtime.test_text import SMALL, finished

COSTS = Costs(
    samples=64, group=8, prompt=10, lengths=[20] * 64, decode={1: 100, 64: 4000}, train=4000,
    at_once=64,
)  # fmt: skip


def made(**given: Any) -> Program:
    options = {name: value for name, value in SMALL.items() if name != "tensorboard"}
    program = api.program("sort", **{**options, **given})
    assert isinstance(program, Program)
    return program


def test_every_plan_that_the_cores_allow_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_placement, "usable", lambda: 4)
    names = [one.name for one in candidates(made(max_lag=1))]
    assert names[0] == "together" and len(set(names)) == len(names)
    # without lag they take turns, so that generators may have all cores
    assert names.count("together") == 1 and len(names) == 1 + 4 + 3
    assert "apart, 4 generators at max_lag 0" in names
    assert "apart, 4 generators at max_lag 1" not in names
    assert all(one.plan.max_lag <= 1 for one in candidates(made(max_lag=1)))


def test_a_plan_that_cannot_be_is_not_compared() -> None:
    rounded = made(settings=[*SMALL["settings"], "source.weights=bf16"])
    assert "together" not in [one.name for one in candidates(rounded)]


def told_by(seconds: dict[str, float], among: list[Candidate]) -> dict[Candidate, Any]:
    plain = forecast(COSTS, among[0].plan)
    return {
        one: replace(plain, plan=one.plan, seconds=seconds[one.name])
        for one in among
        if one.name in seconds
    }


def test_the_forecast_decides_where_one_plan_is_clearly_best() -> None:
    among = candidates(made())
    told = told_by({"together": 1.0, "apart, 1 generator at max_lag 0": 1.5}, among)
    (near,) = shortlist(told)
    chosen, why = decided([near], told, None)
    assert chosen.name == "together" and "1 s an update" in why and "max_lag 0 1.5 s" in why


def test_whole_runs_decide_between_plans_that_are_near() -> None:
    among = candidates(made())
    told = told_by({"together": 1.0, "apart, 1 generator at max_lag 0": 1.1}, among)
    near = shortlist(told)
    race = Race(rates={"together": [50.0], "apart, 1 generator at max_lag 0": [64.0]})
    chosen, why = decided(near, told, race)
    assert chosen.name == "apart, 1 generator at max_lag 0"
    assert why == "it takes 1 s an update, and together 1.28 s"
    race.rates["apart, 1 generator at max_lag 0"] = [51.0]  # equal, but for noise
    assert decided(near, told, race)[0].name == "together"


def test_a_plan_without_time_to_run_counts_by_its_forecast() -> None:
    among = candidates(made())
    told = told_by({"together": 1.1, "apart, 1 generator at max_lag 0": 1.0}, among)
    race = Race(rates={"together": [32.0]}, left_out=["apart, 1 generator at max_lag 0"])
    chosen, why = decided(shortlist(told), told, race)
    assert chosen.name == "apart, 1 generator at max_lag 0" and "1.82 s by the forecast" in why
    race.failed["apart, 1 generator at max_lag 0"] = WorkerFailed("generator 0", "raised")
    assert decided(shortlist(told), told, race)[0].name == "together"


def test_a_plan_is_forecast_by_the_costs_of_the_run_that_is_like_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text_placement, "usable", lambda: 2)
    among = candidates(made(max_lag=1))
    alone = replace(COSTS, reward_s=0.5)
    half = {1: 50.0, 64: 2000.0}
    found = Measured(
        alone=alone,
        generators=replace(COSTS, decode=half),
        learners=replace(COSTS, train=2000, decode=half),
    )
    told = {one.name: forecast for one, forecast in forecasts(among, found).items()}
    turns, several, overlaps = (
        told[f"apart, {number} at max_lag {lag}"]
        for number, lag in (("1 generator", 0), ("2 generators", 0), ("1 generator", 1))
    )
    assert overlaps.spent["learning"] == pytest.approx(2 * turns.spent["learning"], rel=0.02)
    assert several.spent["learning"] == pytest.approx(turns.spent["learning"])
    assert turns.spent["reward"] == several.spent["reward"] == pytest.approx(0.5)
    # half as fast, on two devices
    drawing = {name: one.spent["generation"] + one.spent["long tail"] for name, one in told.items()}
    assert drawing["apart, 2 generators at max_lag 0"] >= drawing["apart, 1 generator at max_lag 0"]
    # several generators that were not measured count as one alone
    told = {one.name: of for one, of in forecasts(among, replace(found, generators=None)).items()}
    once = told["apart, 2 generators at max_lag 0"]
    assert once.seconds < several.seconds


def test_a_plan_for_each_kind_of_neighbours_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_placement, "usable", lambda: 3)
    among, ran = candidates(made(max_lag=1)), dict[str, Program]()

    def measured(blue: Blueprint, interrupt: Interrupt, *, until: float) -> Costs:
        place = blue.program.placement
        name = f"{place.text} {place.actors} {place.max_lag}"
        ran[name] = blue.program
        return replace(COSTS, publish_s=float(len(ran)))

    monkeypatch.setattr(text_placement, "measured", measured)
    with Interrupt() as interrupt:
        found = text_placement._measured(among, interrupt, time.monotonic() + 60)
    assert set(ran) == {"together 1 0", "apart 3 0", "apart 2 1"}
    order = [found.alone, found.generators, found.learners]
    assert [one.publish_s if one else None for one in order] == [1.0, 2.0, 3.0]


def test_several_generators_that_failed_have_no_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one alone they would be the fastest plan, and fail in the run."""
    monkeypatch.setattr(text_placement, "usable", lambda: 4)
    among = candidates(made(max_lag=1))

    def measured(blue: Blueprint, interrupt: Interrupt, *, until: float) -> Costs:
        if blue.program.placement.actors > 1 and blue.program.placement.max_lag == 0:
            raise WorkerFailed("generator 3", "raised")
        return COSTS

    monkeypatch.setattr(text_placement, "measured", measured)
    with Interrupt() as interrupt:
        found = text_placement._measured(among, interrupt, time.monotonic() + 60)
    told = [one.name for one in forecasts(among, found)]
    assert "together" in told and "apart, 3 generators at max_lag 1" in told
    assert not any("generators at max_lag 0" in name for name in told)


def test_costs_that_were_not_measured_forecast_nothing() -> None:
    among = candidates(made(max_lag=1))
    told = forecasts(among, Measured(alone=COSTS))
    assert told and all(one.plan.max_lag == 0 for one in told)
    told = forecasts(among, Measured(learners=COSTS))
    assert told and all(one.plan.max_lag == 1 for one in told)


def test_a_watched_engine_adds_up_what_it_takes() -> None:
    inner = SimEngine(
        Latency(median=3, sigma=0.5, step_s=0.001, waits=True),
        rows=8, vocabulary=10, eos=0, seed=1,
    )  # fmt: skip
    sums = {name: one[0, ...] for name, one in zeros(WatchedEngine.specs(1)).items()}
    engine = WatchedEngine(inner, sums)
    engine.submit(0, [1, 2, 3], 4, limit=20)
    engine.submit(1, [1, 2, 3, 4, 5], 4, limit=20)
    lengths: list[int] = []
    for _ in range(100):
        lengths += [one.drawn for one in engine.step()]
        if not engine.live and not engine.waiting:
            break
    before = sums["steps"].copy()
    engine.step()  # nothing is drawn
    assert (sums["steps"] == before).all()
    began, steps = sums["began"], sums["steps"].sum(0)
    assert began[text_costs.PROMPTS] == 2 and began[text_costs.PROMPT_TOKENS] == 8
    assert began[text_costs.SAMPLES] == 8 and sums["ended"] == 8
    assert sorted(sums["lengths"][:8].tolist()) == sorted(lengths)
    # every token is of one step
    assert began[text_costs.BEGAN_LIVE] + steps[text_costs.LIVE] == sum(lengths)
    assert steps[text_costs.SECONDS] >= 0.001 * steps[text_costs.STEPS] > 0
    assert np.isfinite(steps).all()


def test_in_one_thread_nothing_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "run"
    small = SMALL | {"batch": 16, "steps": 16}
    finished(api.start("sort", out=out, on="serial", placement="auto", **small))
    run = json.loads((out / "run.json").read_text())
    assert run["choices"]["text"]["value"] == "apart"
    assert "one thread" in run["choices"]["text"]["why"]
    assert run["program"]["placement"]["text"] == "apart"
    assert run["program"]["placement"]["auto"] == []


@pytest.mark.slow
def test_the_best_plan_is_measured_and_kept_in_the_record(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = finished(api.start("sort", out=out, on="process", placement="auto", **SMALL))
    record = json.loads((out / "run.json").read_text())
    choice, place = record["choices"]["text"], record["program"]["placement"]
    assert choice["unit"] == "s an update" and "together, forecast" in choice["measured"]
    assert choice["value"].startswith(place["text"]) and place["max_lag"] == 0
    same = finished(api.start("sort", out=tmp_path / "apart", on="serial", **SMALL))
    assert run["params_sha256"] == same["params_sha256"]
