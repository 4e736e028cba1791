"""Atari, tuned for the wall time of two cores, which learner and actors share: so an update is one pass or two."""

from __future__ import annotations

from equipoise.algorithms.apex_dqn import ApexDQN
from equipoise.algorithms.dqn import DQN
from equipoise.algorithms.impala import IMPALA
from equipoise.algorithms.ppo import PPO
from equipoise.types import EnvFactory, Policy, Program, Replay

PONG = EnvFactory(target="ALE/Pong-v5", kwargs={"repeat_action_probability": 0.0})


def pong_impala() -> Program:
    """After the paper and Cleanba (T=20 x 32, lr 6e-4 linear, entropy 0.01, value 0.5, gamma 0.99), with many more updates.

    Deviations: two passes of eight minibatches over a batch, since two cores make few steps; Adam for RMSProp, lr 4e-4
    throughout; the loss is a mean, so the norm is cut at 0.5 and not at 40; no sticky actions, which Cleanba has; rewards
    unclipped, since Pong pays 1; 32 streams on two actors; bf16.
    """
    algorithm = IMPALA(
        learning_rate=4e-4, anneal=False, entropy=0.01, value=0.5, max_grad_norm=0.5, gamma=0.99, epochs=2, minibatches=8
    )
    return Program(
        env=PONG,
        policies={"main": Policy(algorithm=algorithm, unroll=20, batch=32)},
        actors=2,
        envs_per_actor=16,
        max_lag=1,
        precision="bf16",
        steps=10_000_000,
    )


def pong_ppo() -> Program:
    """After CleanRL's PPO for Atari (8 x 128, 4 minibatches and epochs, lr 2.5e-4 linear, clip 0.1, entropy 0.01).

    Deviations: 32 streams of 64 rows, 8 minibatches, 3 epochs, lr 4e-4 throughout, rewards unclipped, a lag of 1, bf16.
    """
    algorithm = PPO(
        gamma=0.99, lambda_=0.95, clip=0.1, entropy=0.01, value=0.5, learning_rate=4e-4, anneal=False, epochs=3, minibatches=8,
        max_grad_norm=0.5,
    )  # fmt: skip
    return Program(
        env=PONG,
        policies={"main": Policy(algorithm=algorithm, unroll=64, batch=32)},
        actors=2,
        envs_per_actor=16,
        max_lag=1,
        precision="bf16",
        steps=10_000_000,
    )


def pong_dqn() -> Program:
    """After CleanRL's and the zoo's DQN (batch 32, an update in four steps, lr 1e-4, target 250 updates, epsilon to 0.01).

    Deviations: double; a replay of 1e5 rows; eight streams; epsilon falls over 2.5e5 steps; bf16.
    """
    algorithm = DQN(learning_rate=1e-4, epsilon=0.01, epsilon_steps=250_000, target_every=250)
    replay = Replay(capacity=100_000, starts_at=10_000, updates=8)
    return Program(
        env=PONG,
        policies={"main": Policy(algorithm=algorithm, unroll=4, batch=32, replay=replay)},
        actors=1,
        envs_per_actor=8,
        max_lag=1,
        precision="bf16",
        steps=10_000_000,
    )


def pong_apex() -> Program:
    """Pong's DQN with Ape-X's ladder and priorities; two actors of eight streams, returns of three steps.

    Deviations from Horgan et al. 2018: 16 streams for 360, batch 32 for 512, an update in eight steps, Adam and lr 1e-4, a
    replay of 1e5 rows, a target of 1,000 updates, norms cut at 10; the ladder after 5e4 steps of falling epsilon; bf16.
    """
    algorithm = ApexDQN(learning_rate=1e-4, epsilon_steps=50_000, target_every=1000, max_grad_norm=10.0)
    replay = Replay(capacity=100_000, starts_at=10_000, updates=8, selector="prioritized")
    return Program(
        env=PONG,
        policies={"main": Policy(algorithm=algorithm, unroll=4, batch=32, replay=replay)},
        actors=2,
        envs_per_actor=8,
        max_lag=None,
        precision="bf16",
        steps=3_000_000,
    )
