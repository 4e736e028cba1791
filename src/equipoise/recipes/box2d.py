"""Box2D. It needs the package Box2D."""

from __future__ import annotations

from collections.abc import Mapping

RECIPES: dict[tuple[str, str], Mapping[str, object]] = {
    # rl-baselines3-zoo's PPO (16 x 1024, 4 epochs of minibatches of 64, lr 3e-4, gamma 0.999,
    # lambda 0.98, entropy 0.01, 1e6 steps).
    ("LunarLander-v3", "ppo"): {
        "policy.unroll": 1_024,
        "policy.batch": 16,
        "algorithm.gamma": 0.999,
        "algorithm.lambda_": 0.98,
        "algorithm.clip": 0.2,
        "algorithm.entropy": 0.01,
        "algorithm.value": 1.0,
        "optimizer.learning_rate": 0.0003,
        "optimizer.schedule": "constant",
        "algorithm.epochs": 4,
        "algorithm.minibatches": 256,
        "placement.actors": 1,
        "placement.envs_per_actor": 16,
        "placement.max_lag": 0,
        "schedule.steps": 1_000_000,
    },
}
