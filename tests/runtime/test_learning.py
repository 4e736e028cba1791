"""It learns: published thresholds, within published budgets, on every runtime."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise import api

GOALS = {"CartPole-v1": (475.0, 500_000), "Acrobot-v1": (-95.0, 1_000_000)}


def train(env: str, algorithm: str, on: Any, seed: int, path: Any, **options: Any) -> dict[str, Any]:
    run = api.train(env, algorithm, on=on, seed=seed, out=path / "run", **options)
    for _ in run:
        pass
    assert run.summary is not None
    print(env, algorithm, on, seed, {k: run.summary[k] for k in ("status", "env_steps", "wall_s", "evaluation")})
    return run.summary


def two_actors(algorithm: str, env: str) -> dict[str, Any]:
    """The recipe's streams, dealt to two actors where they were one's."""
    made = api.program(env, algorithm)
    return {"actors": 2, "envs_per_actor": made.envs_per_actor // 2} if made.actors == 1 else {}


@pytest.mark.parametrize(("algorithm", "on"), [("ppo", "process"), ("impala", "serial")])
def test_cartpole_is_solved(algorithm: str, on: str, tmp_path: Any) -> None:
    """The other two pairs, and more seeds, are slow tests."""
    goal, steps = GOALS["CartPole-v1"]
    summary = train("CartPole-v1", algorithm, on, 0, tmp_path, stop_at=goal, steps=steps)
    assert summary["status"] == "solved" and summary["evaluation"]["mean"] >= goal and summary["evaluation"]["episodes"] == 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("on", ["serial", "process"])
@pytest.mark.parametrize("algorithm", ["ppo", "impala", "appo", "a3c"])
@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1"])
def test_classic_control_is_solved(env: str, algorithm: str, on: str, seed: int, tmp_path: Any) -> None:
    goal, steps = GOALS[env]
    summary = train(env, algorithm, on, seed, tmp_path, stop_at=goal, steps=steps, **two_actors(algorithm, env))
    assert summary["status"] == "solved", summary


@pytest.mark.slow
@pytest.mark.parametrize("max_lag", [0, 1, 4, None])
@pytest.mark.parametrize("algorithm", ["ppo", "impala", "appo"])
def test_cartpole_is_solved_at_any_lag(algorithm: str, max_lag: int | None, tmp_path: Any) -> None:
    options = {"stop_at": 475.0, "steps": 500_000, "max_lag": max_lag, **two_actors(algorithm, "CartPole-v1")}
    summary = train("CartPole-v1", algorithm, "process", 0, tmp_path, **options)
    assert summary["status"] == "solved", summary
    assert max_lag is None or summary["lag"]["max"] <= max_lag


@pytest.mark.slow
@pytest.mark.parametrize("on", ["serial", "process"])
def test_a_recurrent_policy_remembers_velocities(on: str, tmp_path: Any) -> None:
    settings = [
        "algorithm.core=lstm", "algorithm.gamma=0.98", "algorithm.lambda_=0.9", "algorithm.learning_rate=1e-3",
        "algorithm.epochs=8", "algorithm.minibatches=2", "algorithm.entropy=0.001",
    ]  # fmt: skip
    summary = train(
        "tests.runtime.masked:masked_cartpole", "ppo", on, 0, tmp_path, settings=settings, actors=2, envs_per_actor=8,
        unroll=64, stop_at=400.0, steps=1_000_000,
    )  # fmt: skip
    assert summary["status"] == "solved", summary
