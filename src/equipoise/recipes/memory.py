"""Envs in which what was seen is to be remembered."""

from __future__ import annotations

from equipoise.algorithms.r2d2 import R2D2
from equipoise.types import EnvFactory, Policy, Program, Replay


def tmaze_r2d2() -> Program:
    """Found here, for a corridor of 30: windows of 20 rows of burn-in and 40 that are learned from; the rest as for ``repeat``.

    gamma is Bakker's (2002), 0.98; returns of 10 steps bring what the junction is worth to the start in three.
    """
    algorithm = R2D2(
        gamma=0.98, n_step=10, burn_in=20, length=40, core_span=40,
        hidden=(32,), core_size=64, learning_rate=1e-3, optimizer_epsilon=1e-8, target_every=50,
    )  # fmt: skip
    return _memory("equipoise/TMaze-v0", algorithm)


def repeat_r2d2() -> Program:
    """Found here, for a delay of 50: windows are learned from that hold a whole episode, since one row in 51 has anything to
    teach; a small LSTM whose gates begin as long as that (with biases of 0 no gradient reaches the symbol), and an Adam whose
    epsilon is no match for their gradients.
    """
    algorithm = R2D2(
        gamma=0.99, n_step=5, burn_in=0, length=60, core_span=60,
        hidden=(32,), core_size=64, learning_rate=2e-3, optimizer_epsilon=1e-8, target_every=50,
    )  # fmt: skip
    return _memory("equipoise/RepeatFirst-v0", algorithm)


def _memory(env: str, algorithm: R2D2) -> Program:
    """32 streams; windows overlap by half."""
    replay = Replay(capacity=200_000, starts_at=10_000, updates=8, selector="prioritized", alpha=0.9, beta=0.6)
    policy = Policy(algorithm=algorithm, unroll=algorithm.length // 2, batch=32, replay=replay)
    return Program(env=EnvFactory(target=env), policies={"main": policy}, actors=2, envs_per_actor=16, max_lag=1, steps=300_000)
