"""What the table of Ape-X's actors is made of: shares, linearity within a round, medians with runs
that never ended.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scaling
import sleepy
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from harness import Failed


def window(series: str, actors: int, i: int, value: float | None) -> dict[str, Any]:
    run = {"series": series, "actors": actors, "round": i, "probe_before": {"two_core": 20.0}}
    if value is None:
        return run | {"failed": "no"}
    shares = {
        "learner": {"worked": 0.25, "starved": 0.75},
        "actor": {"blocked": 0.5, "preempted": 0.125},
    }
    return run | {
        "value": value,
        "updates_per_s": 60.0,
        "updates_a_round": 16,
        "shares": shares,
        "verdict": f"Round {i}.",
    }


def test_shares_are_of_all_seconds_of_the_window() -> None:
    one = {"worked": 1.0, "preempted": 0.0, "starved": 1.0, "blocked": 0.0}
    more = {"learner": one, "actor 0": one | {"blocked": 6.0}, "actor 1": one | {"worked": 7.0}}
    found = scaling.shares(
        [{"learner": one | {"worked": 5.0}, "actor 0": one, "actor 1": one}, more]
    )
    assert found["learner"] == {"worked": 0.75, "preempted": 0.0, "starved": 0.25, "blocked": 0.0}
    assert found["actor"] == {"worked": 0.5, "preempted": 0.0, "starved": 0.2, "blocked": 0.3}


def test_linear_is_within_a_round_and_a_series() -> None:
    runs = [
        window("fixed", 1, 0, 100.0),
        window("fixed", 4, 0, 400.0),
        window("fixed", 1, 1, 200.0),
        window("fixed", 4, 1, 600.0),
        window("per row", 1, 0, 50.0),
        window("per row", 4, 0, 100.0),
        window("per row", 4, 1, None),
    ]
    assert scaling.linearity(runs, "fixed", 4) == [1.0, 0.75]
    assert scaling.linearity(runs, "fixed", 1) == [1.0, 1.0]
    assert scaling.linearity(runs, "per row", 4) == [0.5]


def test_the_table_shows_medians_and_the_last_verdict_and_failures() -> None:
    runs = [window("fixed", 1, 0, 100.0), window("fixed", 1, 1, 300.0), window("fixed", 2, 0, None)]
    assert scaling.window_lines(runs) == [
        ["fixed: 16", "1", "200", "1.00", "60", "25%", "75%", "50%", "12%", "Round 1."],
        ["fixed", "2", *["failed"] * 8],
    ]


def test_a_run_that_did_not_solve_it_took_for_ever() -> None:
    common = {"env_steps": 1000, "updates": 50}
    runs: list[dict[str, Any]] = [
        {"actors": 1, "value": 40.0, **common},
        {"actors": 1, "failed": "no"},
        {"actors": 1, "failed": "no"},
    ]
    runs += [{"actors": 16, "value": seconds, **common} for seconds in (30.0, 20.0, 10.0)]
    assert [line[1:5] for line in scaling.solve_lines(runs)] == [
        ["1 of 3", "inf", "40.0", "inf"],
        ["3 of 3", "20.0", "10.0", "30.0"],
    ]


def test_updates_follow_the_actors_or_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def trained(command: list[str], *args: Any, **options: Any) -> Any:
        seen.append(command)
        raise Failed("enough")

    monkeypatch.setattr(scaling, "trained", trained)
    monkeypatch.setattr(scaling, "calibrate", lambda: {"two_core": 20.0})
    monkeypatch.setattr(
        "sys.argv", ["scaling.py", "--actors", "1,4", "--updates", "3", "--rounds", "1"]
    )
    assert scaling.main() == 1, "runs failed"
    updates = [
        next(word for word in command if word.startswith("replay.updates=")) for command in seen
    ]
    assert updates == [f"replay.updates={n}" for n in (3, 3, 3, 12)]


def test_the_env_is_cartpole_that_sleeps_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("sleepy.time.sleep", slept.append)
    for envs, pause in ((1, 0.002), (4, 0.008), (100, 0.008)):
        slept.clear()
        slow, plain = (
            sleepy.SleepyCartPole(envs, in_turn=4),
            CartPoleVectorEnv(envs, max_episode_steps=500),
        )
        action = np.ones(envs, np.int64)
        assert np.array_equal(slow.reset(seed=3)[0], plain.reset(seed=3)[0])
        for _ in range(20):
            for mine, its in zip(slow.step(action)[:4], plain.step(action)[:4], strict=True):
                assert np.array_equal(mine, its)
        assert slept == pytest.approx([pause] * 20)
