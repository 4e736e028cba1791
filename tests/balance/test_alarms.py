"""Alarms on made-up runs: each planted sign raises its alarm with its owner, and what is usual
raises none.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from equipoise.balance.alarms import (
    Alarms,
    FirstEpisodes,
    Limits,
    Moment,
    PolicyLimits,
    Probe,
    contradicted,
    effective,
)
from equipoise.balance.shares import Shares

ACTOR, LEARNER = Shares(worked=1.0, side="sampling"), Shares(worked=1.0, side="learning")
LIMITS = Limits(
    steps=100_000,
    unroll=16,
    policies={"main": PolicyLimits(algorithm="PPO", max_sensible_lag=8.0, least_entropy=0.035)},
    filling={"learner": 500e6},
)
FIRST = FirstEpisodes(episodes=32, mean=22.0, std=12.0)  # of CartPole
HEALTHY = {
    "entropy": 0.6,
    "value_error": 900.0,
    "rho": 1.0,
    "rho_squared": 1.02,
    "grad_norm/all": 0.4,
}


def moments(count=60, every_s=1.0, **series):
    """``count`` moments of a healthy run that learns, with these fields as functions of the share
    of the run done.
    """
    for i in range(count):
        done = i / count
        usual = Moment(
            wall_s=i * every_s,
            step=int(done * 100_000),
            published=10 * i,
            episodes=1000 * i,
            return_mean=22.0 + 400.0 * done,
            lag_mean=1.0,
            metrics=dict(HEALTHY),
            first=FIRST,
            acting={"actor 0": (10 * i, 160 * i)},
            memory={"actor 0": 300e6, "learner": 400e6},
            balance={"actor 0": ACTOR, "learner": LEARNER},
        )
        yield replace(usual, **{name: made(done) for name, made in series.items()})


def raised(limits=LIMITS, every_s=1.0, **series):
    alarms = Alarms(limits)
    new = [alarm for moment in moments(every_s=every_s, **series) for alarm in alarms.look(moment)]
    assert new == alarms.raised
    return {alarm.name: alarm for alarm in alarms.raised}


def with_metrics(**changed):
    return lambda done: HEALTHY | {name: made(done) for name, made in changed.items()}


def limits(**changed):
    return replace(LIMITS, policies={"main": replace(LIMITS.policies["main"], **changed)})


FAULTS = {
    # name: (owner, in the evidence, limits, fields)
    "entropy collapsed": (
        "policy main",
        "22",
        LIMITS,
        {
            "metrics": with_metrics(entropy=lambda d: 0.69 * (1 - d) ** 4),
            "return_mean": lambda d: 21.0,
        },
    ),
    "loss exploding": (
        "policy main",
        "value_error",
        LIMITS,
        {"metrics": with_metrics(value_error=lambda d: 100.0 * math.exp(60 * d))},
    ),
    "weights collapsed": (
        "policy main",
        "5.0%",
        LIMITS,
        {"metrics": with_metrics(rho_squared=lambda d: 1.0 if d < 0.5 else 20.0)},
    ),
    "engine disagrees": (
        "policy main",
        "1.200",
        LIMITS,
        {"metrics": with_metrics(token_mult_prob_error=lambda d: 1.0 if d < 0.5 else 1.2)},
    ),
    "lag too large": ("policy main", "PPO bears 8", LIMITS, {"lag_mean": lambda d: 64 * d}),
    "replay ratio out of range": (
        "replay",
        "1,000 updates",
        replace(LIMITS, samples=256_000.0, updates=1000.0),
        {},
    ),
    "old weights": (
        "actor 1",
        "version 3",
        LIMITS,
        {
            "acting": lambda d: {
                "actor 0": (int(600 * d), int(9600 * d)),
                "actor 1": (3, int(9600 * d)),
            }
        },
    ),
    "memory grows": (
        "actor 1",
        "1 MB/s",
        LIMITS,
        {
            "memory": lambda d: {"actor 0": 300e6, "actor 1": 300e6 + 60e6 * d},
            "balance": lambda d: {"actor 1": ACTOR},
        },
    ),
    "below random play": (
        "policy main",
        "9.4",
        LIMITS,
        {"return_mean": lambda d: max(22.0 - 60.0 * d, 9.4)},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.few(len(FAULTS))
def test_a_planted_fault_raises_its_alarm_and_no_other(name):
    owner, evidence, given, series = FAULTS[name]
    found = raised(given, **series)
    assert list(found) == [name]
    assert (found[name].owner, evidence in found[name].evidence) == (owner, True), found[name].text
    assert found[name].wall_s <= 60 and found[name].action


HEALTHY_RUNS = {
    "it learns": {},
    "solved from early on, and sure of it": {
        "metrics": with_metrics(entropy=lambda d: 0.01),
        "return_mean": lambda d: 500.0,
    },
    "entropy falls as it learns": {"metrics": with_metrics(entropy=lambda d: 0.69 * (1 - d) ** 4)},
    "nothing is learned yet, at random": {"return_mean": lambda d: 21.0},
    "a dip at first": {"return_mean": lambda d: 9.0 if d < 0.15 else 100.0},
    "below, and rising": {"return_mean": lambda d: -300.0 + 250.0 * d},
    "values that grow with the returns": {
        "metrics": with_metrics(value_error=lambda d: (2000.0 * d) ** 2, q=lambda d: 2000 * d),
        "return_mean": lambda d: 22.0 + 3e3 * d,
    },
    "one spike of the loss": {
        "metrics": with_metrics(value_error=lambda d: 1e15 if 0.5 < d < 0.53 else 900.0)
    },
    "no episode ended": {
        "return_mean": lambda d: None,
        "first": lambda d: None,
        "episodes": lambda d: 0,
    },
    "a replay that fills": {"memory": lambda d: {"learner": 100e6 + 500e6 * d}},
    "memory of a start": {"memory": lambda d: {"actor 0": min(20e6 + 3000e6 * d, 800e6)}},
    "memory that grows by steps": {"memory": lambda d: {"actor 0": 300e6 + 40e6 * int(4 * d)}},
    "a worker that is replaced": {"memory": lambda d: {"actor 0": 300e6 + 20e6 * ((60 * d) % 20)}},
    "slow unrolls by old weights": {
        "acting": lambda d: {"actor 0": (100 * int(6 * d), 16 * int(6 * d))}
    },
    "weights that are published seldom": {
        "acting": lambda d: {"actor 0": (0, int(9600 * d))},
        "published": lambda d: 0,
    },
}


def test_a_policy_that_loses_what_it_had_learned_collapses_too():
    lost = {
        "metrics": with_metrics(entropy=lambda d: 0.001),
        "return_mean": lambda d: 300.0 if d < 0.5 else 100.0,
    }
    assert list(raised(**lost)) == ["entropy collapsed"]
    assert raised(**lost | {"return_mean": lambda d: 300.0 if d < 0.5 else 200.0}) == {}


@pytest.mark.parametrize("name", HEALTHY_RUNS)
@pytest.mark.few(len(HEALTHY_RUNS))
@pytest.mark.parametrize("every_s", [1.0, 4.0, 8.0])
def test_what_is_usual_raises_none(name, every_s):
    """However slow the machine is."""
    assert raised(every_s=every_s, **HEALTHY_RUNS[name]) == {}


@pytest.mark.parametrize("slow", [1, 4, 8])
def test_a_worker_that_starts_and_compiles_is_not_watched(slow):
    """Memory as it was recorded of a learner that compiles: 1.4 GB in 40 s of a fast machine, in
    steps of all sizes.
    """
    alarms, compiling = Alarms(LIMITS), 40 * slow
    for moment in moments(count=compiling + 60, memory=lambda d: {}):
        at = int(moment.wall_s)
        # until then the worker says what its start is at
        told = {"learner": 1.6e9} if at >= compiling else {}
        alarms.look(replace(moment, memory=told))
    assert alarms.raised == []
    leaks, count = Alarms(LIMITS), compiling + 60
    for moment in moments(
        count=count, memory=lambda d: {"learner": 200e6 + min(1.4e9, 35e6 * d * count / slow)}
    ):
        leaks.look(moment)
    assert slow == 1 or [one.name for one in leaks.raised] == ["memory grows"], (
        "it would be one, were it watched"
    )


def test_a_worker_that_starts_again_is_watched_from_its_new_start_on():
    alarms, gone = Alarms(LIMITS), range(20, 25)
    for at, moment in enumerate(moments(memory=lambda d: {"actor 0": 300e6 + 60e6 * d})):
        alarms.look(replace(moment, memory={} if at in gone else moment.memory))
        assert not alarms.raised or at >= gone.stop + 30
    assert [one.name for one in alarms.raised] == ["memory grows"]


def test_an_alarm_is_raised_once():
    alarms = Alarms(LIMITS)
    counts = [len(alarms.look(moment)) for moment in moments(lag_mean=lambda d: 100.0)]
    assert sum(counts) == len(alarms.raised) == 1


def test_two_signs_of_one_alarm_are_one():
    found = Alarms(LIMITS)
    for moment in moments(
        metrics=lambda d: {"td_error": 1e9 * math.exp(d), "q": 1e9 * math.exp(d)}
    ):
        found.look(moment)
    assert [one.name for one in found.raised] == ["loss exploding"]


def test_each_of_several_policies_has_its_own():
    both = replace(LIMITS, policies=dict.fromkeys(("ann", "bob"), LIMITS.policies["main"]))
    said = {f"{name}/{key}": value for name in ("ann", "bob") for key, value in HEALTHY.items()}
    found = raised(both, metrics=lambda d: said | {"bob/rho_squared": 50.0})
    assert [(one.name, one.owner) for one in found.values()] == [
        ("weights collapsed", "policy bob")
    ]


def test_what_is_not_said_is_not_judged():
    free = Limits(steps=100_000, unroll=1, policies={"main": PolicyLimits(algorithm="DQN")})
    assert (
        raised(free, lag_mean=lambda d: 1e6, metrics=lambda d: {"entropy": 0.0, "td_error": 1.0})
        == {}
    )


def test_an_update_that_is_not_finite_is_an_alarm_in_the_errors_own_words():
    alarms = Alarms(LIMITS)
    made = alarms.failed(
        "learner, update 3: got loss nan; the weights of update 2 are good", step=7, wall_s=1.0
    )
    assert (
        alarms.raised == [made]
        and made.owner == "learner"
        and made.evidence == "learner, update 3: got loss nan"
    )
    assert made.text.startswith("alarm: loss not finite (learner): learner, update 3")


def test_the_effective_sample_size():
    assert effective(1.0, 1.0) == 1.0
    assert effective(0.5, 1.0) == 0.25
    assert effective(math.inf, math.inf) == effective(math.nan, 1.0) == 0.0


def test_a_learned_reward_is_exploited_once_its_guard_gives_up() -> None:
    metrics = {"preferences_win_rate": 0.25}
    assert contradicted(0.0, metrics) == ""
    assert contradicted(1.0, metrics).endswith("the last ones let it win 25%")


def probed(*series: tuple[float, float]) -> Alarms:
    """Return the alarms of evaluations with these true and learned rewards."""
    alarms, best = Alarms(LIMITS), None
    for step, (gold, proxy) in enumerate(series, 1):
        last = Probe(step=step, gold=gold, error=0.01, proxy=proxy)
        best = last if best is None or gold > best.gold else best
        alarms.evaluated(best, last, wall_s=float(step))
    return alarms


def test_a_true_reward_that_falls_while_the_learned_one_rises_is_an_alarm_once() -> None:
    [alarm] = probed((0.5, 0.0), (0.8, 1.0), (0.7, 1.1), (0.6, 1.2), (0.5, 1.3)).raised
    assert (alarm.name, alarm.owner, alarm.step) == ("reward exploited", "policy main", 4)
    assert "fell from 0.8 at step 2 to 0.6 at step 4" in alarm.evidence


@pytest.mark.parametrize(
    "series",
    [
        ((0.8, 1.0), (0.79, 1.1), (0.79, 1.2), (0.78, 1.3)),  # within chance
        ((0.8, 1.0), (0.6, 0.9), (0.5, 0.8), (0.4, 0.7)),  # both fall: a policy that forgets
        ((0.8, 1.0), (0.6, 1.1), (0.81, 1.2), (0.6, 1.3)),  # never twice in a row
    ],
)
def test_a_learned_reward_that_is_not_exploited_raises_none(
    series: tuple[tuple[float, float], ...],
) -> None:
    assert probed(*series).raised == []
