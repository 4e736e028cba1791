"""The gain of lending a learner's device for the time in which it waits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from equipoise.balance.placement.idle_time import Update, forecast, gains, step_line
from equipoise.balance.placement.lending import Lender

# a generator whose step takes 10 ms and 1 ms for each of 32 samples
BUSY = Update(
    seconds=1.0, learn_s=0.2, tokens=760.0, samples=32.0, step_s=0.01, sample_s=0.001, generators=1,
    lent=False,
)  # fmt: skip


def simulated(update: Update, *, lent: bool) -> float:
    """An update step by step: each device draws its share of the samples."""
    devices = update.generators + lent
    rows = update.samples / devices
    step, left, now = update.step_s + update.sample_s * rows, update.tokens, 0.0
    ends = [step] * update.generators
    learns_until = update.learn_s + update.change_s
    if lent:
        ends.append(learns_until + step)
    while left > 0:
        now = min(ends)
        ends[ends.index(now)] = now + step
        left -= rows
    return max(now, update.learn_s + (update.change_s if lent else 0.0))


def test_a_forecast_is_what_devices_do_step_by_step() -> None:
    draw = random.Random(3)
    for _ in range(200):
        update = Update(
            seconds=1.0,
            learn_s=draw.uniform(0.05, 2.0),
            tokens=draw.uniform(2_000, 50_000),
            samples=draw.uniform(8, 64),
            step_s=draw.uniform(0.001, 0.01),
            sample_s=draw.uniform(0.0, 0.001),
            generators=draw.randint(1, 4),
            lent=draw.random() < 0.5,
            change_s=draw.uniform(0.0, 0.02),
        )
        for lent in (False, True):
            told = forecast(update, lent=lent)
            rows = update.samples / (update.generators + lent)
            step = update.step_s + update.sample_s * rows
            assert told == pytest.approx(simulated(update, lent=lent), rel=0.02, abs=2 * step)


def test_a_device_that_waits_is_lent_and_one_that_learns_is_not() -> None:
    assert gains(BUSY).lend > 0.2
    # where the learner is the slower one it has no time
    assert gains(replace(BUSY, learn_s=1.0)).lend <= 0
    assert gains(replace(BUSY, learn_s=0.99, tokens=700)).lend < 0.02
    lent = replace(BUSY, lent=True, seconds=0.7)
    assert gains(lent).back < 0 < gains(replace(lent, tokens=100, change_s=0.02)).back


def test_one_more_device_gains_little_if_a_step_costs_the_same_for_fewer_samples() -> None:
    constant = replace(BUSY, step_s=0.042, sample_s=0.0)
    assert forecast(constant, lent=True) >= forecast(constant, lent=False)
    full = replace(constant, full=True)
    assert forecast(full, lent=True) < 0.7 * forecast(full, lent=False)


def test_the_line_of_steps_is_found_and_bounded() -> None:
    def sums(steps: Sequence[tuple[float, float]]) -> tuple[float, ...]:
        return (
            len(steps),
            sum(one for one, _ in steps),
            sum(s for _, s in steps),
            sum(one * s for one, s in steps),
            sum(one * one for one, _ in steps),
        )

    line = [(n, 0.01 + 0.002 * n) for n in (1, 5, 20, 32)]
    assert step_line(*sums(line)) == pytest.approx((0.01, 0.002))
    assert step_line(*sums([(8, 0.1)] * 5)) == pytest.approx((0.05, 0.00625))
    falling = step_line(*sums([(1, 0.5), (8, 0.1)]))
    assert falling == pytest.approx((0.3, 0.0))
    steep = step_line(*sums([(4, 0.1), (8, 0.9)]))
    assert steep[0] == pytest.approx(0.0) and steep[1] > 0
    assert step_line(0, 0, 0, 0, 0) == (0.0, 0.0)


def test_a_run_whose_lengths_grow_lends_once_and_takes_back_once() -> None:
    lender, lent, moves = Lender(most=1, switch_s=0.05), False, []
    grows = [1 + 4 * min(n, 40 - n) / 20 for n in range(40)]  # and shrinks again
    for at, factor in enumerate(grows):
        now = replace(
            BUSY, tokens=200 * factor, samples=32.0, learn_s=0.6, lent=lent, change_s=0.02
        )
        now = replace(now, seconds=forecast(now, lent=lent))
        if move := lender.look(gains(now)):
            moves.append((at, move))
            lent = move > 0
    assert [move for _, move in moves] == [1, -1], moves
    assert 4 < moves[0][0] < 20 < moves[1][0]


def test_noise_does_not_make_it_swing() -> None:
    draw, switches = random.Random(1), 0
    for seed in range(50):
        draw.seed(seed)
        base = replace(
            BUSY, tokens=draw.uniform(50, 1500), learn_s=draw.uniform(0.1, 1.0), change_s=0.01
        )
        lender, lent, at = Lender(most=1), False, list[int]()
        for n in range(200):
            now = replace(base, tokens=base.tokens * draw.uniform(0.7, 1.3), lent=lent)
            now = replace(now, seconds=forecast(now, lent=lent))
            if move := lender.look(gains(now)):
                at.append(n)
                lent = move > 0
        switches += len(at)
        assert all(after - before >= 3 for before, after in itertools.pairwise(at))
    assert switches <= 300, switches  # of 10,000 updates
