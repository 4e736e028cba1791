"""JAX's simulators, thousands of streams at once."""

from __future__ import annotations

from collections.abc import Mapping

RECIPES: dict[tuple[str, str], Mapping[str, object]] = {
    # After purejaxrl's PPO for CartPole (4 epochs of 4 minibatches, clip 0.2, entropy 0.01, lambda
    # 0.95, lr 2.5e-4 linear).
    #
    # Deviations: 64 streams of 32 rows, not 4 of 128; lr 2e-3, for the larger batch; 1e6 steps.
    ("jax:gymnax/CartPole-v1", "ppo"): {
        "policy.unroll": 32,
        "policy.batch": 64,
        "algorithm.gamma": 0.99,
        "algorithm.lambda_": 0.95,
        "algorithm.entropy": 0.01,
        "algorithm.clip": 0.2,
        "optimizer.learning_rate": 0.002,
        "optimizer.schedule": "linear",
        "algorithm.epochs": 4,
        "algorithm.minibatches": 4,
        "placement.actors": 1,
        "placement.envs_per_actor": 64,
        "placement.max_lag": 0,
        "schedule.steps": 1_000_000,
    },
    # After the PPO for ant in Brax's training notebook (32 minibatches of an update, 4 epochs,
    # discount 0.97, entropy 0.01, clip 0.3, inputs normalised, no bound of the gradient).
    #
    # Deviations: 512 streams of 80 rows in place of 4096, for runs of some million steps; lr 6e-4,
    # not 3e-4; a deviation of 0.37 at first, of one number an action; two layers of 256 with tanh.
    # Rewards by 0.1 in place of 10 learn twice as fast, and then forget (docs/guides/jax.md).
    ("jax:brax/ant", "ppo"): {
        "policy.unroll": 80,
        "policy.batch": 512,
        "algorithm.hidden": (256, 256),
        "algorithm.squash": True,
        "algorithm.log_std": -1.0,
        "algorithm.gamma": 0.97,
        "algorithm.lambda_": 0.95,
        "algorithm.entropy": 0.01,
        "algorithm.clip": 0.3,
        "optimizer.learning_rate": 0.0006,
        "optimizer.schedule": "constant",
        "optimizer.epsilon": 1e-8,
        "optimizer.max_grad_norm": 0.0,
        "algorithm.epochs": 4,
        "algorithm.minibatches": 32,
        "algorithm.normalize_obs": True,
        "rewards.scale": 10.0,
        "placement.actors": 1,
        "placement.envs_per_actor": 512,
        "placement.max_lag": 0,
        "schedule.steps": 4_000_000,
    },
    # After Craftax_Baselines' PPO (1024 envs of 64 rows, 4 epochs of 8 minibatches, lr 2e-4 linear,
    # gamma 0.99, lambda 0.8, clip 0.2, entropy 0.01, norm 1.0, layers of 512 with tanh).
    #
    # Deviations: 256 streams, so that 1e6 steps are 61 updates; Craftax-1M is what these steps are
    # for.
    ("jax:craftax/Craftax-Symbolic-v1", "ppo"): {
        "policy.unroll": 64,
        "policy.batch": 256,
        "algorithm.hidden": (512, 512, 512),
        "algorithm.gamma": 0.99,
        "algorithm.lambda_": 0.8,
        "algorithm.entropy": 0.01,
        "algorithm.clip": 0.2,
        "optimizer.learning_rate": 0.0002,
        "optimizer.schedule": "linear",
        "optimizer.max_grad_norm": 1.0,
        "algorithm.epochs": 4,
        "algorithm.minibatches": 8,
        "placement.actors": 1,
        "placement.envs_per_actor": 256,
        "placement.max_lag": 0,
        "schedule.steps": 1_000_000,
    },
}
