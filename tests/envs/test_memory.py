"""The T-maze and repeat the first: the rules, of the vector env and of the single one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from equipoise.envs.toys.tmaze import CORRIDOR, EAST, JUNCTION, NORTH, SOUTH, WEST
from tests.envs.rolling import env_of

MAZES = ("equipoise/TMaze-v0", "python:equipoise/TMaze-v0")
REPEATS = ("equipoise/RepeatFirst-v0", "python:equipoise/RepeatFirst-v0")
BAD = np.float32(-0.1)


def walk(env: Any, ts: Any, action: Any) -> Any:
    env.send(np.asarray(action), ts.stream)
    return env.recv()


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("target", MAZES)
def test_who_remembers_the_sign_turns_right(target: str, wrong: bool) -> None:
    env = env_of(target, 8, 1, length=5)
    ts, signs = env.recv(), []
    for _ in range(4):
        assert ts.first.all()
        sign = ts.obs.copy()
        signs += sign.tolist()
        for place in range(1, 6):
            ts = walk(env, ts, np.full(8, EAST))
            assert (
                (ts.obs == (JUNCTION if place == 5 else CORRIDOR)).all()
                and not ts.reward.any()
                and not ts.first.any()
            )
        ts = walk(env, ts, np.where((sign == 0) != wrong, NORTH, SOUTH))
        assert (
            ts.terminated.all()
            and not ts.truncated.any()
            and (ts.reward == (BAD if wrong else 4.0)).all()
        )
        ts = walk(env, ts, np.full(8, NORTH))  # ignored: the reset
        assert not ts.valid.any() and not ts.reward.any() and not ts.terminated.any()
    assert set(signs) == {0, 1}


@pytest.mark.parametrize("target", MAZES)
def test_a_wall_hurts_and_a_clock_cuts(target: str) -> None:
    env = env_of(target, 2, 2, length=2)
    ts = env.recv()
    sign = ts.obs.copy()
    # north, west (walls); east, east, east (the junction's wall); back, and to the start, where the
    # sign is still seen
    for action, seen, reward in (
        (NORTH, sign, BAD),
        (WEST, sign, BAD),
        (EAST, CORRIDOR, 0.0),
        (SOUTH, CORRIDOR, BAD),
        (EAST, JUNCTION, 0.0),
        (EAST, JUNCTION, BAD),
        (WEST, CORRIDOR, 0.0),
        (WEST, sign, 0.0),
    ):
        ts = walk(env, ts, np.full(2, action))
        assert (
            (ts.obs == seen).all()
            and (ts.reward == np.float32(reward)).all()
            and not ts.truncated.any()
        )
    for t in range(9, 13):
        ts = walk(env, ts, np.full(2, WEST))
        assert ts.truncated.all() == (t == 12) and not ts.terminated.any() and ts.valid.all()
    assert walk(env, ts, np.full(2, WEST)).first.all()


@pytest.mark.parametrize("target", MAZES)
def test_a_right_turn_with_the_clocks_last_step_is_no_cut(target: str) -> None:
    env = env_of(target, 1, 0, length=1)
    ts = env.recv()
    turn = SOUTH if ts.obs[0] else NORTH
    for action in (WEST, WEST, WEST, WEST, WEST, WEST, EAST, turn):
        ts = walk(env, ts, np.array([action]))
    assert ts.terminated.all() and not ts.truncated.any() and ts.reward[0] == 4.0


@pytest.mark.parametrize("target", REPEATS)
def test_the_symbol_is_asked_for_after_the_delay(target: str) -> None:
    env = env_of(target, 6, 3, delay=4, symbols=3)
    ts, seen, rng = env.recv(), [], np.random.default_rng(0)
    for episode in range(12):
        symbol = ts.obs.copy()
        seen += symbol.tolist()
        assert ts.first.all() and (symbol < 3).all()
        for t in range(1, 5):
            ts = walk(env, ts, rng.integers(0, 3, 6))
            assert (
                (ts.obs == (4 if t == 4 else 3)).all()
                and not ts.reward.any()
                and not ts.terminated.any()
            )
        answer = symbol if episode % 2 else (symbol + 1) % 3
        ts = walk(env, ts, answer)
        assert ts.terminated.all() and not ts.truncated.any() and (ts.reward == episode % 2).all()
        ts = walk(env, ts, symbol)
        assert not ts.valid.any() and not ts.reward.any()
    assert set(seen) == {0, 1, 2}


@pytest.mark.parametrize(
    ("target", "wrong", "said"),
    [
        *[
            (target, {"length": 0}, "length: expected a corridor of at least 1 cell, got 0")
            for target in MAZES
        ],
        *[
            (target, {"delay": 0}, "a delay of at least 1 and at least 2 symbols, got 0 and 4")
            for target in REPEATS
        ],
    ],
)
def test_sizes_that_make_no_sense_are_refused(
    target: str, wrong: dict[str, int], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        env_of(target, 2, **wrong)
