"""MiniGrid."""

from __future__ import annotations

from equipoise.algorithms.ppo import PPO
from equipoise.types import EnvFactory, Policy, Program


def doorkey_ppo() -> Program:
    """After rl-starter-files' PPO (16 x 128, minibatches of 256, 4 epochs, lr 1e-3, entropy 0.01, norm 0.5).

    Deviations: an MLP over one-hot codes in place of its small CNN over raw ones.
    """
    algorithm = PPO(
        gamma=0.99, lambda_=0.95, clip=0.2, entropy=0.01, learning_rate=1e-3, epochs=4, minibatches=8, anneal=False,
        normalize_advantage=False,
    )  # fmt: skip
    return Program(
        env=EnvFactory(target="MiniGrid-DoorKey-5x5-v0"),
        policies={"main": Policy(algorithm=algorithm, unroll=128, batch=16)},
        actors=2,
        envs_per_actor=8,
        max_lag=0,
        steps=300_000,
    )
