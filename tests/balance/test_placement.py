"""Forecasts of where text is generated and learned from, with a discrete-event simulation as their
judge; and the lender, which decides about devices while a run goes on.
"""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import replace

import pytest
from placement import (
    CASES,
    GROWING,
    REFERENCE,
    STAYING,
    TOGETHER,
    Case,
    all_plans,
    apart,
    elastic_beside_fixed,
    fourfold,
)

from equipoise.balance.placement.choice import best, forecast, plans
from equipoise.balance.placement.costs import PARTS, Costs, Plan
from equipoise.balance.placement.lending import MARGIN, SEEN, Gains, Lender, gains


def agrees(case: Case, plan: Plan) -> None:
    told, true = case.simulated(plan)
    assert told.seconds == pytest.approx(true.seconds, rel=0.05), plan.name
    assert told.learners_idle == pytest.approx(true.learners_idle, abs=0.06), plan.name
    assert told.generators_idle == pytest.approx(true.generators_idle, abs=0.08), plan.name
    assert told.lag == pytest.approx(true.lag, abs=0.15), plan.name
    assert sum(told.spent.values()) == pytest.approx(told.seconds)


@pytest.mark.parametrize("plan", [TOGETHER, apart(2, 0), apart(3, 1), apart(5, 3)])
def test_a_forecast_agrees_with_the_simulation(plan: Plan) -> None:
    agrees(CASES["a long tail"], plan)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_forecast_agrees_with_the_simulation(name: str) -> None:
    for plan in all_plans(CASES[name]):
        agrees(CASES[name], plan)


def test_asynchronous_generation_pays() -> None:
    _, together = REFERENCE.simulated(TOGETHER)
    _, asynchronous = REFERENCE.simulated(apart(1))
    costs, _ = REFERENCE.run()
    assert together.seconds / asynchronous.seconds >= 1.8
    assert asynchronous.learners_idle <= 0.15
    assert 0 < asynchronous.lag <= 1
    chosen = best(costs, [TOGETHER, *(apart(one) for one in range(1, 8))])
    assert chosen.best.plan == apart(1) and "together" in chosen.why


@pytest.mark.slow
def test_an_elastic_run_is_faster_than_any_fixed_split_while_lengths_grow_fourfold() -> None:
    assert elastic_beside_fixed(GROWING, 90, fourfold) >= 1.1


@pytest.mark.slow
@pytest.mark.parametrize("name", STAYING)
def test_an_elastic_run_is_not_slower_when_nothing_changes(name: str) -> None:
    assert elastic_beside_fixed(CASES[name], 40, lambda _: 1.0) >= 0.97


def test_a_lender_switches_at_most_once_an_update_and_never_soon_again() -> None:
    for seed in range(1000):
        draw, moves = random.Random(seed), list[int]()
        lender = Lender(most=7, switch_s=draw.uniform(0, 5), lent=draw.randrange(8))
        before, scale = lender.lent, draw.uniform(0.01, 1)
        for _ in range(40):
            spread = [draw.gauss(0, scale) for _ in range(2)]
            moves.append(lender.look(Gains(update_s=10, lend=spread[0], back=spread[1])))
            assert 0 <= lender.lent <= 7
            assert lender.lent == before + sum(moves) and moves[-1] in (-1, 0, 1)
        at = [place for place, move in enumerate(moves) if move]
        assert all(later - earlier >= SEEN for earlier, later in itertools.pairwise(at))


def test_a_lender_waits_for_what_pays() -> None:
    def moves(lend: float, back: float = 0.0, switch_s: float = 0.0) -> list[int]:
        lender = Lender(most=3, switch_s=switch_s, lent=1)
        return [lender.look(Gains(update_s=10, lend=lend, back=back)) for _ in range(9)]

    assert moves(10 * MARGIN * 0.9, 10 * MARGIN * 0.9) == [0] * 9  # within the band
    assert moves(1.0) == [0, 0, 1, 0, 0, 1, 0, 0, 0]  # three updates each, until all are lent
    assert moves(0.0, 1.0) == [0, 0, -1] + [0] * 6
    assert moves(1.0, switch_s=11) == [0] * 9  # would not be paid back in ten updates
    lender = Lender(most=3, lent=1)  # one odd update changes nothing
    assert not any(lender.look(Gains(update_s=10, lend=one)) for one in (0, 0.4, 0, 0, 0.4, 0))


@pytest.mark.thorough
def test_64_devices_are_cheap_to_forecast() -> None:
    costs, _ = REFERENCE.run()
    plan = Plan(kind="elastic", generate=8, learn=56, max_lag=1)
    costs = replace(costs, samples=2048)
    began = time.process_time()
    now = gains(costs, plan, 4)
    # of an update of many seconds: far less than a core
    assert time.process_time() - began < 0.1 * now.update_s
    began = time.process_time()
    chosen = best(costs, plans(64, max_lag=2))
    assert time.process_time() - began < 10 and chosen.best.plan.devices == 64


def test_simple_plans_are_taken_if_nothing_is_gained() -> None:
    costs, _ = CASES["short samples"].run()
    free = replace(costs, publish_s=0.0, reward_s=0.0, switch_s=0.0, lengths=[100] * 512)
    # samples of one length, and no cost of a change: together nobody waits
    assert best(free, plans(2)).best.plan.kind == "together"
    assert best(costs, [apart(4)]).others == ()
    assert best(costs, plans(1)).best.plan == Plan(kind="together", generate=1, learn=1)


@pytest.mark.thorough
def test_lengths_that_will_grow_call_for_devices_that_can_be_lent() -> None:
    costs, _ = GROWING.run()
    among = [apart(one, 2) for one in range(1, 8)]
    among.append(Plan(kind="elastic", generate=1, learn=7, max_lag=2))
    assert best(costs, among).best.plan.kind == "apart"
    assert best(costs, among, growth=4.0).best.plan.kind == "elastic"


def test_the_parts_of_an_update_say_what_binds() -> None:
    costs, _ = CASES["a long tail"].run()
    assert forecast(costs, TOGETHER).bound == "long tail"
    assert forecast(costs, apart(7)).bound == "learning"
    assert forecast(replace(costs, reward_s=500.0), apart(4)).bound == "reward"
    assert forecast(replace(costs, publish_s=500.0), apart(4)).bound == "publishing"
    assert forecast(replace(costs, switch_s=500.0), TOGETHER).bound == "switching"
    assert forecast(replace(costs, at_once=32), apart(1)).bound == "generation"
    assert set(forecast(costs, TOGETHER).spent) == set(PARTS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"samples": 0}, "samples: must be at least 1, got 0"),
        ({"samples": 12, "group": 8}, "samples: must be a multiple of group=8, got 12"),
        ({"at_once": 4}, "at_once: must be at least group=8, got 4"),
        ({"lengths": []}, "lengths: must be"),
        ({"lengths": [3, 0]}, "lengths: must be"),
        ({"decode": {}}, "decode: must be tokens/s above 0"),
        ({"decode": {1: 0.0}}, "decode: must be tokens/s above 0"),
        ({"train": 0.0}, "train: must be tokens/s above 0, got 0.0"),
        ({"room": 0.0}, "room: must be above 0, got 0.0"),
        ({"reward_s": -1.0}, "reward_s: must be at least 0, got -1.0"),
    ],
)
def test_wrong_costs_are_refused(change: dict[str, object], said: str) -> None:
    good = Costs(samples=8, group=8, lengths=[1], decode={1: 1.0}, train=1.0, at_once=8)
    with pytest.raises(ValueError, match=said):
        replace(good, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"kind": "apart", "generate": 0, "learn": 1}, "generate: must be 1 to 4,096 devices"),
        ({"kind": "apart", "generate": 1, "learn": 1, "max_lag": 65}, "max_lag: must be 0 to 64"),
        ({"kind": "together", "generate": 1, "learn": 2}, "together: must have max_lag=0"),
        ({"kind": "elastic", "generate": 1, "learn": 1}, "elastic: must have at least 3 devices"),
    ],
)
def test_wrong_plans_are_refused(plan: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Plan(**plan)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="devices: must be 1 to 4,096, got 0"):
        plans(0)
