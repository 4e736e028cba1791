"""Device envs are learned: stated returns within stated steps, each by three seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise import api

ADAM = "optimizer.learning_rate=1e-3"
# the evaluated return, of 100 episodes, that is reached
CASES: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {
    ("pendulum", "ppo"): (
        -300.0,
        {
            "steps": 750_000,
            "envs_per_actor": 256,
            "unroll": 16,
            "batch": 256,
            "settings": [
                ADAM,
                "optimizer.schedule=linear",
                "algorithm.gamma=0.9",
                "algorithm.epochs=10",
                "algorithm.minibatches=8",
            ],
        },
    ),
    ("pendulum", "sac"): (
        -250.0,
        {
            "steps": 20_000,
            "envs_per_actor": 32,
            "unroll": 1,
            "batch": 256,
            "settings": [ADAM, "replay.updates=16", "algorithm.random_steps=1000"],
        },
    ),
    ("rooms", "impala"): (
        0.8,
        {
            "steps": 3_000_000,
            "envs_per_actor": 64,
            "unroll": 16,
            "batch": 64,
            "settings": [
                "optimizer.learning_rate=2e-3",
                "algorithm.entropy=0.005",
                "algorithm.gamma=0.97",
            ],
        },
    ),
    ("rooms", "dqn"): (
        0.7,
        {
            "steps": 600_000,
            "envs_per_actor": 64,
            "unroll": 4,
            "batch": 256,
            "settings": [ADAM, "replay.updates=8", "algorithm.target_every=200"],
        },
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("env", "algorithm"), CASES)
def test_it_reaches_its_return(env: str, algorithm: str, seed: int, tmp_path: Path) -> None:
    goal, options = CASES[env, algorithm]
    lag: dict[str, Any] = {} if algorithm in ("sac", "dqn") else {"max_lag": 0}
    made = api.program(
        f"device:{env}",
        algorithm,
        actors=1,
        seed=seed,
        recipe=False,
        evaluate_episodes=100,
        threads=1,
        precision="fp32",
        **options,
        **lag,
    )
    with api.start(made, on="serial", out=tmp_path / "run") as run:
        for _ in run:
            pass
    assert run.summary is not None
    print(
        env,
        algorithm,
        seed,
        {key: run.summary[key] for key in ("env_steps", "wall_s", "evaluation")},
    )
    assert run.summary["evaluation"]["mean"] >= goal
