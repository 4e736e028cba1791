"""Goal envs."""

from __future__ import annotations

from equipoise.algorithms.dqn import DQN
from equipoise.types import EnvFactory, Policy, Program, Replay


def bitflip_dqn() -> Program:
    """After Andrychowicz et al. 2017, section 3.1 and appendix A: 15 bits, one layer of 256, lr 1e-3, gamma 0.98, a soft
    target, four goals of five from hindsight.

    Found here: rounds of 64 steps of 16 streams, and 16 updates of 128 items after each; the final epsilon is 0.2.
    """
    algorithm = DQN(
        hidden=(256,), gamma=0.98, learning_rate=1e-3, epsilon=0.2, epsilon_steps=20_000, target_every=1, tau=0.05,
    )  # fmt: skip
    replay = Replay(capacity=500_000, starts_at=1_000, updates=16, relabel=0.8)
    return Program(
        env=EnvFactory(target="equipoise/BitFlip-v0"),
        policies={"main": Policy(algorithm=algorithm, unroll=4, batch=128, replay=replay)},
        actors=1,
        envs_per_actor=16,
        max_lag=1,
        steps=40_000,
    )
