"""MuJoCo."""

from __future__ import annotations

from equipoise.algorithms.ppo import PPO
from equipoise.algorithms.sac import SAC
from equipoise.algorithms.td3 import TD3
from equipoise.types import Algorithm, EnvFactory, Policy, Program, Replay


def halfcheetah_ppo() -> Program:
    """With rl-baselines3-zoo's gamma and lambda: seed 0 had 3,278 at 680k steps; 1,563 with 0.99 and 0.95."""
    return _ppo("HalfCheetah-v5", gamma=0.98, lambda_=0.92)


def hopper_ppo() -> Program:
    return _ppo("Hopper-v5")


def walker2d_ppo() -> Program:
    return _ppo("Walker2d-v5")


def _ppo(env: str, *, gamma: float = 0.99, lambda_: float = 0.95) -> Program:
    """CleanRL's PPO for continuous actions (2048 rows a batch, 10 epochs, clip 0.2, both statistics, 1e6 steps).

    Deviations: the rows are 128 of 16 streams, not 2048 of one; 8 minibatches of 256 rows, not 32 of 64, and the learning
    rate twice as large, 6e-4 linear, which takes a third of the learner's time; no value clipping; the statistics are renewed
    once a batch, not once a row.
    """
    algorithm = PPO(
        gamma=gamma, lambda_=lambda_, clip=0.2, entropy=0.0, learning_rate=6e-4, epochs=10, minibatches=8, normalize_obs=True,
        normalize_reward=True,
    )  # fmt: skip
    return Program(
        env=EnvFactory(target=env),
        policies={"main": Policy(algorithm=algorithm, unroll=128, batch=16)},
        actors=1,
        envs_per_actor=16,
        max_lag=0,
        steps=1_000_000,
    )


def halfcheetah_sac() -> Program:
    """The SAC of rl-baselines3-zoo (256-256, lr 3e-4, batch 256, tau 0.005, 1e4 random steps); a round is four steps."""
    return _off_policy(SAC(learning_rate=3e-4, random_steps=10_000))


def halfcheetah_td3() -> Program:
    """Fujimoto's TD3 (256-256, lr 3e-4, noise 0.1, batch 256). Deviations: 1e4 random steps for 2.5e4; rounds of four steps."""
    return _off_policy(TD3(learning_rate=3e-4, random_steps=10_000))


def _off_policy(algorithm: Algorithm) -> Program:
    replay = Replay(capacity=1_000_000, starts_at=10_000, updates=4)
    return Program(
        env=EnvFactory(target="HalfCheetah-v5"),
        policies={"main": Policy(algorithm=algorithm, unroll=1, batch=256, replay=replay)},
        actors=1,
        envs_per_actor=4,
        max_lag=1,
        steps=1_000_000,
    )
