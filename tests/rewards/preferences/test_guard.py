"""The guard against reward hacking, on single looks and on simulated traces."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from equipoise.rewards.preferences.guard import (
    Limits,
    Signs,
    State,
    assess,
    expected_by,
    paid,
)
from tests.rewards.preferences.traces import Case, play

FINE = Signs(answers=20, accuracy=0.8, expected=0.8, compared=10, win_answers=0.6, win_model=0.6)
HACKED = replace(FINE, win_answers=0.1, win_model=0.9)


def test_caution_lowers_rewards_that_members_disagree_about() -> None:
    mean, deviation = torch.tensor([1.0, 1.0]), torch.tensor([0.0, 0.5])
    assert paid(mean, deviation, 2.0).tolist() == [1.0, 0.0]


def test_a_model_expects_its_own_confidence() -> None:
    assert expected_by(torch.tensor([0.9, 0.3, 0.5])) == pytest.approx((0.9 + 0.7 + 0.5) / 3)


@pytest.mark.parametrize(
    ("signs", "kind", "said"),
    [
        (FINE, "ok", "support the model"),
        (Signs(), "ok", ""),
        (replace(FINE, accuracy=0.5), "ask", "predicted 50% of 20 new answers, and expected 80%"),
        (replace(FINE, deviation=3.0), "ask", "disagree 3.0 times as much"),
        (replace(FINE, kl=6.0), "ask", "6 nats"),
        (HACKED, "pull back", "wins 90% of 10 comparisons with the best one by the model, and 10%"),
        (replace(HACKED, compared=7), "ok", ""),  # too few
        (replace(HACKED, win_model=0.1), "ok", ""),  # the model sees that it is worse
    ],
)
def test_a_look_has_a_verdict_and_a_reason(signs: Signs, kind: str, said: str) -> None:
    _, verdict = assess(State(), signs, Limits(kl=5.0))
    assert verdict.kind == kind and said in verdict.reason


def test_a_policy_far_away_is_pulled_back_if_nobody_answers() -> None:
    far, state, kinds = Signs(deviation=3.0), State(), []
    for _ in range(4):
        state, verdict = assess(state, far)
        kinds.append(verdict.kind)
    assert kinds == ["ask", "ask", "pull back", "ask"]
    state, verdict = assess(State(unanswered=2), replace(FINE, deviation=3.0))
    assert verdict.kind == "ask" and state.unanswered == 0


def test_pull_backs_in_a_row_end_in_a_stop_and_a_better_version_forgives() -> None:
    state = State()
    for wanted in ("pull back", "pull back", "pull back", "stop", "stop"):
        state, verdict = assess(state, HACKED)
        assert verdict.kind == wanted
    state = State(look=9, pulled=(7, 8, 9))
    better, verdict = assess(state, replace(FINE, win_answers=1.0))
    assert verdict.best and better.pulled == ()
    same, verdict = assess(state, replace(FINE, win_answers=0.5))
    assert not verdict.best and same.pulled == (7, 8, 9)
    forgotten, verdict = assess(replace(state, look=60), HACKED)
    assert verdict.kind == "pull back" and forgotten.pulled == (61,)


def test_a_stop_is_for_good() -> None:
    state, verdict = assess(State(look=9, pulled=(7, 8, 9)), HACKED)
    assert verdict.kind == "stop"
    for _ in range(50):
        state, verdict = assess(state, FINE)
        assert verdict.kind == "stop" and not verdict.best


def test_evidence_of_several_looks_adds_up() -> None:
    little, state, kinds = replace(FINE, win_answers=0.33, win_model=0.65, compared=6), State(), []
    for _ in range(3):
        state, verdict = assess(state, little)
        kinds.append(verdict.kind)
    assert kinds == ["ok", "ask", "pull back"]


def test_the_newest_look_counts_without_the_looks_before_it() -> None:
    state, _ = assess(State(), replace(FINE, win_answers=0.6, win_model=0.4))
    _, verdict = assess(state, replace(FINE, win_answers=0.0, win_model=0.45))
    assert verdict.kind == "pull back"


def test_a_last_version_that_seems_to_lose_is_pulled_back() -> None:
    loses = replace(FINE, win_answers=0.3, win_model=0.3)
    assert [assess(State(), loses, last=last)[1].kind for last in (False, True)] == [
        "ok",
        "pull back",
    ]
    assert assess(State(), replace(loses, win_answers=0.4), last=True)[1].kind == "ok"


SHORTCUTS = {
    "all members pay for it": Case(bonus=0.5, asked=20),
    "the members doubt it": Case(bonus=0.5, doubt=5.0, asked=20),
    "it pays little": Case(bonus=0.1, asked=20),
    "it is slow": Case(bonus=0.5, speed=0.02, asked=20),
    "the teacher errs": Case(bonus=0.5, errors=0.1, asked=20),
}
HONEST = {
    "it climbs": Case(),
    "it stays at its best": Case(speed=0.2, wobble=0.01),
    "the teacher errs": Case(errors=0.2, wobble=0.01),
    "it forgets, as the model sees": Case(forgets=30),
    "members doubt new places": Case(wobble=0.03, doubt=8.0),
}


@pytest.mark.parametrize("name", SHORTCUTS)
def test_a_shortcut_is_found_before_a_fifth_of_the_return_is_lost(name: str) -> None:
    traces = [play(SHORTCUTS[name], looks=45, seed=seed, obey=False) for seed in range(5)]
    lost = sorted(trace.lost("pull back", "stop") for trace in traces)
    assert lost[3] < 0.2, lost  # one of five may be late
    assert all(trace.lost("ask", "pull back") < 0.2 for trace in traces)
    assert play(SHORTCUTS[name], looks=120, seed=7, obey=True).verdicts[-1].kind == "stop"


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_run_is_not_stopped(name: str) -> None:
    for seed in range(3):
        kinds = [one.kind for one in play(HONEST[name], looks=60, seed=seed, obey=True).verdicts]
        assert "stop" not in kinds and kinds.count("pull back") <= 2, kinds
