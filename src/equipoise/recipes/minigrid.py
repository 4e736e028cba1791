"""MiniGrid."""

from __future__ import annotations

from collections.abc import Mapping

# After rl-starter-files' PPO (16 x 128, minibatches of 256, 4 epochs, lr 1e-3, entropy 0.01, norm
# 0.5).
#
# Deviations: an MLP over one-hot codes in place of its small CNN over raw ones.
PPO = {
    "policy.unroll": 128,
    "policy.batch": 16,
    "algorithm.gamma": 0.99,
    "algorithm.lambda_": 0.95,
    "algorithm.clip": 0.2,
    "algorithm.entropy": 0.01,
    "optimizer.learning_rate": 0.001,
    "algorithm.epochs": 4,
    "algorithm.minibatches": 8,
    "optimizer.schedule": "constant",
    "algorithm.normalize_advantage": False,
    "placement.actors": 2,
    "placement.envs_per_actor": 8,
    "placement.max_lag": 0,
}

# As many steps as were run (docs/results/recipes.md).
RECIPES: dict[tuple[str, str], Mapping[str, object]] = {
    ("MiniGrid-DoorKey-5x5-v0", "ppo"): {**PPO, "schedule.steps": 300_000},
    ("MiniGrid-Empty-Random-5x5-v0", "ppo"): {**PPO, "schedule.steps": 100_000},
    ("MiniGrid-LavaGapS5-v0", "ppo"): {**PPO, "schedule.steps": 150_000},
    ("MiniGrid-Unlock-v0", "ppo"): {**PPO, "schedule.steps": 300_000},
}
