"""The queries of a whole run, and the share that is kept for the guard."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from equipoise.rewards.preferences.asking import Budget

MINE = Budget(labels=700, round=50, newest=0.2, spread=True)


def asked(budget: Budget, rounds: int, urgent: range = range(0)) -> list[tuple[int, int]]:
    """The queries of each round and those about the newest segments, the first round's included."""
    newest, others, found = 0, budget.round, [(budget.round, 0)]
    for now in range(1, rounds):
        count, mine = budget.counts(
            newest,
            others,
            progress=(now + 1) / rounds,
            urgent=now in urgent,
            last=now == rounds - 1,
        )
        newest, others = newest + mine, others + count - mine
        found.append((count, mine))
    return found


@pytest.mark.parametrize("rounds", [14, 20, 200])
def test_the_guard_looks_until_the_end_of_the_schedule(rounds: int) -> None:
    found = asked(MINE, rounds)
    looks = [now for now, (_, mine) in enumerate(found) if mine]
    assert 690 <= sum(count for count, _ in found) <= 700
    assert 130 <= sum(mine for _, mine in found) <= 140 and {found[now][1] for now in looks} == {10}
    assert looks[-1] >= rounds - 2
    assert max(b - a for a, b in itertools.pairwise(looks)) <= max(rounds / 12, 2)


def test_two_looks_are_kept_for_the_last_round() -> None:
    budget = replace(MINE, at_end=True)
    for urgent in (range(0), range(5, 15), range(20)):
        found = asked(budget, 20, urgent)
        assert found[-1][1] == 20 and sum(count for count, _ in found) <= 700
    assert asked(MINE, 20, range(5, 15))[-1][1] < 20


@pytest.mark.parametrize("rounds", [50, 200])
def test_the_other_queries_last_for_most_of_the_schedule(rounds: int) -> None:
    found = asked(MINE, rounds)
    others = [count - mine for count, mine in found]
    assert sum(others[: rounds // 5]) == pytest.approx(280, abs=50)  # a falling rate
    last = max(now for now, count in enumerate(others) if count)
    assert 0.75 * rounds <= last <= 0.8 * rounds and sum(others) == 560
    assert min(count for count in others[:last] if count) >= 25  # whole rounds


def test_without_the_guard_all_are_asked_as_segments_come() -> None:
    found = asked(Budget(labels=700, round=50, newest=0.2, spread=False), 20)
    assert found[:14] == [(50, 0), *[(50, 10)] * 13] and found[14:] == [(0, 0)] * 6


def test_once_the_guard_asks_the_next_rounds_are_half_about_the_newest() -> None:
    found = asked(MINE, 20, urgent=range(3, 5))
    assert [mine for _, mine in found[3:5]] == [25, 25]
    assert all(count <= 50 for count, _ in found)
    assert sum(count for count, _ in found) <= 700


@pytest.mark.parametrize("labels", [1, 7, 33])
@pytest.mark.parametrize("newest", [0.0, 0.5, 1.0])
def test_no_more_than_the_labels_are_asked(labels: int, newest: float) -> None:
    budget = Budget(labels=labels, round=5, newest=newest, spread=True)
    for newest_asked in range(labels + 1):
        for others in range(labels + 2 - newest_asked):
            for urgent in (False, True):
                count, mine = budget.counts(newest_asked, others, progress=1.0, urgent=urgent)
                assert 0 <= mine <= count <= max(labels - newest_asked - others, 0)


def test_rounds_with_more_queries_than_the_run_ask_them_all() -> None:
    for labels in (10, 20):
        budget, newest, others = Budget(labels=labels, round=50, newest=0.5, spread=True), 0, 0
        for now in range(1, 11):
            count, mine = budget.counts(newest, others, progress=now / 10, urgent=False)
            newest, others = newest + mine, others + count - mine
        assert (newest, others) == (labels // 2, labels // 2)
