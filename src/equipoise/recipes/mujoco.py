"""MuJoCo."""

from __future__ import annotations

from equipoise.algorithms.ppo import PPO
from equipoise.types import EnvFactory, Policy, Program

ENVS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")


def ppo(env: str) -> Program:
    """CleanRL's PPO for continuous actions: 2048 rows a batch, 10 epochs, lr 3e-4 linear, both statistics, 1e6 steps."""
    algorithm = PPO(
        gamma=0.99, lambda_=0.95, clip=0.2, entropy=0.0, learning_rate=3e-4, epochs=10, minibatches=32,
        normalize_obs=True, normalize_reward=True,
    )  # fmt: skip
    return Program(
        env=EnvFactory(target=env),
        policies={"main": Policy(algorithm=algorithm, unroll=128, batch=16)},
        actors=1,
        envs_per_actor=16,
        max_lag=0,
        steps=1_000_000,
    )
