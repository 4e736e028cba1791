"""Classic control."""

from __future__ import annotations

from equipoise.algorithms.a3c import A3C
from equipoise.algorithms.apex_dqn import ApexDQN
from equipoise.algorithms.appo import APPO
from equipoise.algorithms.dqn import DQN
from equipoise.algorithms.impala import IMPALA
from equipoise.algorithms.ppo import PPO
from equipoise.algorithms.sac import SAC
from equipoise.algorithms.td3 import TD3
from equipoise.types import EnvFactory, Policy, Program, Replay


def cartpole_ppo() -> Program:
    """After rl-baselines3-zoo's tuned PPO (8 x 32, 20 epochs of one minibatch, lr 1e-3 and clip 0.2 linear, 1e5 steps).

    Deviations: 16 streams, 10 epochs of two minibatches, the schedules run over 5e5 steps; orthogonal init as in CleanRL.
    """
    algorithm = PPO(
        gamma=0.98, lambda_=0.8, entropy=0.0, learning_rate=1e-3, epochs=10, minibatches=2, clip=0.2, anneal_clip=True,
    )  # fmt: skip
    return Program(
        env=EnvFactory(target="CartPole-v1"),
        policies={"main": Policy(algorithm=algorithm, unroll=32, batch=16)},
        actors=1,
        envs_per_actor=16,
        max_lag=0,
        steps=500_000,
    )


def cartpole_impala() -> Program:
    """Found here: separate torsos, or the value loss (returns near 500) drowns the policy's gradient in the clip."""
    algorithm = IMPALA(gamma=0.98, learning_rate=1.5e-3, entropy=0.003)
    return Program(
        env=EnvFactory(target="CartPole-v1"),
        policies={"main": Policy(algorithm=algorithm, unroll=20, batch=16)},
        actors=2,
        envs_per_actor=8,
        max_lag=1,
        steps=500_000,
    )


def cartpole_appo() -> Program:
    """Found here; the figures of CartPole's PPO where the two are alike."""
    algorithm = APPO(gamma=0.98, lambda_=0.9, entropy=0.0, learning_rate=1e-3, epochs=4, minibatches=2)
    return Program(
        env=EnvFactory(target="CartPole-v1"),
        policies={"main": Policy(algorithm=algorithm, unroll=32, batch=16)},
        actors=2,
        envs_per_actor=8,
        max_lag=1,
        steps=500_000,
    )


def cartpole_a3c() -> Program:
    """After rl-baselines3-zoo's A2C (8 streams, unrolls of 5, RMSProp, no entropy, 5e5 steps).

    Deviations: four actors of eight streams each whose unrolls are an update each, whenever they come.
    """
    algorithm = A3C(entropy=0.0)
    return Program(
        env=EnvFactory(target="CartPole-v1"),
        policies={"main": Policy(algorithm=algorithm, unroll=5, batch=8)},
        actors=4,
        envs_per_actor=8,
        max_lag=None,
        steps=500_000,
    )


def acrobot_ppo() -> Program:
    """CleanRL's PPO for classic control, on 16 streams of 128 rows."""
    algorithm = PPO(gamma=0.99, lambda_=0.95, entropy=0.01, learning_rate=1e-3, epochs=4, minibatches=4, clip=0.2)
    return Program(
        env=EnvFactory(target="Acrobot-v1"),
        policies={"main": Policy(algorithm=algorithm, unroll=64, batch=32)},
        actors=2,
        envs_per_actor=16,
        max_lag=0,
        steps=1_000_000,
    )


def acrobot_impala() -> Program:
    algorithm = IMPALA(learning_rate=1.5e-3, entropy=0.01)
    return Program(
        env=EnvFactory(target="Acrobot-v1"),
        policies={"main": Policy(algorithm=algorithm, unroll=20, batch=16)},
        actors=2,
        envs_per_actor=8,
        max_lag=1,
        steps=1_000_000,
    )


def acrobot_appo() -> Program:
    """Acrobot's PPO with half of its batch, and a lag of one."""
    algorithm = APPO(learning_rate=1e-3, epochs=4, minibatches=4)
    return Program(
        env=EnvFactory(target="Acrobot-v1"),
        policies={"main": Policy(algorithm=algorithm, unroll=64, batch=16)},
        actors=2,
        envs_per_actor=8,
        max_lag=1,
        steps=1_000_000,
    )


def acrobot_a3c() -> Program:
    """Found here: a batch of two actors' unrolls and lr 2e-3 learn where an update for each alone, or lr 7e-4, may not."""
    algorithm = A3C(entropy=0.01, learning_rate=2e-3)
    return Program(
        env=EnvFactory(target="Acrobot-v1"),
        policies={"main": Policy(algorithm=algorithm, unroll=8, batch=32)},
        actors=4,
        envs_per_actor=16,
        max_lag=None,
        steps=1_000_000,
    )


def cartpole_dqn() -> Program:
    """After rl-baselines3-zoo's tuned DQN (256-256, lr 2.3e-3, batch 64, 128 updates to 256 steps, 5e4 steps).

    Its target is copied between two such phases. Deviations: rounds of 64 steps of four streams and 32 updates; double; the
    learning rate goes to 0 over 1e5 steps.
    """
    algorithm = DQN(learning_rate=2.3e-3, anneal=True, epsilon=0.04, epsilon_steps=8_000, target_every=128)
    replay = Replay(capacity=100_000, starts_at=1_000, updates=32)
    return _off_policy("CartPole-v1", Policy(algorithm=algorithm, unroll=16, batch=64, replay=replay), steps=100_000)


def cartpole_apex() -> Program:
    """CartPole's DQN with Ape-X's ladder and priorities; two actors of eight streams, returns of three steps.

    Deviations from Horgan et al. 2018: the final epsilon of DQN is that of a stream in the middle of the ladder; the sizes.
    """
    algorithm = ApexDQN(learning_rate=1e-3, anneal=True, target_every=128, max_grad_norm=10.0)
    replay = Replay(capacity=100_000, starts_at=1_000, updates=32, selector="prioritized")
    return Program(
        env=EnvFactory(target="CartPole-v1"),
        policies={"main": Policy(algorithm=algorithm, unroll=4, batch=64, replay=replay)},
        actors=2,
        envs_per_actor=8,
        max_lag=None,
        steps=100_000,
    )


def cartpole_sac() -> Program:
    """Found here: half of the greatest entropy (of 0.98, as published, little of a policy is left with two actions)."""
    algorithm = SAC(learning_rate=1e-3, target_entropy=0.35, temperature=0.2)
    replay = Replay(capacity=100_000, starts_at=1_000, updates=32)
    return _off_policy("CartPole-v1", Policy(algorithm=algorithm, unroll=16, batch=128, replay=replay), steps=100_000)


def pendulum_sac() -> Program:
    """After rl-baselines3-zoo's SAC (256-256, lr 1e-3, batch 256, an update a step, 2e4 steps); a round is four steps."""
    replay = Replay(capacity=100_000, starts_at=500, updates=4)
    policy = Policy(algorithm=SAC(learning_rate=1e-3, random_steps=500), unroll=1, batch=256, replay=replay)
    return _off_policy("Pendulum-v1", policy, steps=20_000)


def pendulum_td3() -> Program:
    """After rl-baselines3-zoo's TD3 (lr 1e-3, noise 0.1, batch 256, an update a step, 2e4 steps).

    Deviations: 256-256 for 400-300, 1,000 steps before the first update for 10,000; a round is four steps.
    """
    replay = Replay(capacity=100_000, starts_at=1_000, updates=4)
    policy = Policy(algorithm=TD3(learning_rate=1e-3, random_steps=1_000), unroll=1, batch=256, replay=replay)
    return _off_policy("Pendulum-v1", policy, steps=20_000)


def _off_policy(env: str, policy: Policy, *, steps: int) -> Program:
    """Four streams, whose next round is made while the last is learned from."""
    return Program(env=EnvFactory(target=env), policies={"main": policy}, actors=1, envs_per_actor=4, max_lag=1, steps=steps)
