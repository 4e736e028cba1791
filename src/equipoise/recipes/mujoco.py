"""MuJoCo."""

from __future__ import annotations

from collections.abc import Mapping

# CleanRL's PPO for continuous actions (2048 rows a batch, 10 epochs, clip 0.2, both statistics, 1e6
# steps).
#
# Deviations: the rows are 128 of 16 streams, not 2048 of one; 8 minibatches of 256 rows, not 32 of
# 64, and the learning rate twice as large, 6e-4 linear, which takes a third of the learner's time;
# no value clipping; the statistics are renewed once a batch, not once a row.
PPO = {
    "policy.unroll": 128,
    "policy.batch": 16,
    "algorithm.gamma": 0.99,
    "algorithm.lambda_": 0.95,
    "algorithm.clip": 0.2,
    "algorithm.entropy": 0.0,
    "optimizer.learning_rate": 0.0006,
    "optimizer.schedule": "linear",
    "algorithm.epochs": 10,
    "algorithm.minibatches": 8,
    "algorithm.normalize_obs": True,
    "rewards.normalize": True,
    "placement.actors": 1,
    "placement.envs_per_actor": 16,
    "placement.max_lag": 0,
    "schedule.steps": 1_000_000,
}

# The SAC of rl-baselines3-zoo (256-256, lr 3e-4, batch 256, tau 0.005, 1e4 random steps); a round
# is four steps.
SAC = {
    "policy.unroll": 1,
    "policy.batch": 256,
    "optimizer.learning_rate": 0.0003,
    "algorithm.random_steps": 10_000,
    "replay.capacity": 1_000_000,
    "replay.starts_at": 10_000,
    "replay.updates": 4,
    "placement.actors": 1,
    "placement.envs_per_actor": 4,
    "placement.max_lag": 1,
    "schedule.steps": 1_000_000,
}

RECIPES: dict[tuple[str, str], Mapping[str, object]] = {
    # With rl-baselines3-zoo's gamma and lambda: seed 0 had 3,278 at 680k steps; 1,563 with
    # CleanRL's.
    ("HalfCheetah-v5", "ppo"): {**PPO, "algorithm.gamma": 0.98, "algorithm.lambda_": 0.92},
    ("HalfCheetah-v5", "sac"): SAC,
    # Fujimoto's TD3 (256-256, lr 3e-4, noise 0.1, batch 256). Deviations: 1e4 random steps for
    # 2.5e4; rounds of four steps.
    ("HalfCheetah-v5", "td3"): SAC,
    ("Hopper-v5", "ppo"): PPO,
    ("Walker2d-v5", "ppo"): PPO,
    # With rl-baselines3-zoo's gamma. Run for 1e5 steps only (docs/results/recipes.md).
    ("Swimmer-v5", "ppo"): {**PPO, "algorithm.gamma": 0.9999},
}
