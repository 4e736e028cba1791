"""Envs in which what was seen is to be remembered."""

from __future__ import annotations

from collections.abc import Mapping

RECIPES: dict[tuple[str, str], Mapping[str, object]] = {
    # Both have 32 streams, and windows that overlap by half.
    #
    # Found here, for a corridor of 30: windows of 20 rows of burn-in and 40 that are learned from;
    # the rest as for ``repeat``.
    #
    # gamma is Bakker's (2002), 0.98; returns of 10 steps bring what the junction is worth to the
    # start in three.
    ("equipoise/TMaze-v0", "r2d2"): {
        "policy.unroll": 20,
        "policy.batch": 32,
        "algorithm.gamma": 0.98,
        "algorithm.n_step": 10,
        "algorithm.burn_in": 20,
        "algorithm.length": 40,
        "algorithm.core_span": 40,
        "algorithm.hidden": (32,),
        "algorithm.core_size": 64,
        "optimizer.learning_rate": 0.001,
        "optimizer.epsilon": 1e-08,
        "algorithm.target_every": 50,
        "replay.capacity": 200_000,
        "replay.starts_at": 10_000,
        "replay.updates": 8,
        "replay.selector": "prioritized",
        "replay.alpha": 0.9,
        "replay.beta": 0.6,
        "placement.actors": 2,
        "placement.envs_per_actor": 16,
        "placement.max_lag": 1,
        "schedule.steps": 300_000,
    },
    # Found here, for a delay of 50: windows are learned from that hold a whole episode, since one
    # row in 51 has anything to teach; a small LSTM whose gates begin as long as that (with biases
    # of 0 no gradient reaches the symbol), and an Adam whose epsilon is no match for their
    # gradients.
    ("equipoise/RepeatFirst-v0", "r2d2"): {
        "policy.unroll": 30,
        "policy.batch": 32,
        "algorithm.gamma": 0.99,
        "algorithm.n_step": 5,
        "algorithm.burn_in": 0,
        "algorithm.length": 60,
        "algorithm.core_span": 60,
        "algorithm.hidden": (32,),
        "algorithm.core_size": 64,
        "optimizer.learning_rate": 0.002,
        "optimizer.epsilon": 1e-08,
        "algorithm.target_every": 50,
        "replay.capacity": 200_000,
        "replay.starts_at": 10_000,
        "replay.updates": 8,
        "replay.selector": "prioritized",
        "replay.alpha": 0.9,
        "replay.beta": 0.6,
        "placement.actors": 2,
        "placement.envs_per_actor": 16,
        "placement.max_lag": 1,
        "schedule.steps": 300_000,
    },
    # Found here, for a corridor of 100. A greedy policy walks straight on, so Q-learning comes to
    # the junction; PPO rarely did. Windows of 140 rows that begin every 40 hold each episode whole,
    # which minGRU's gradient asks for. GTrXL's reaches into the stored window, so 40 rows do
    # (docs/guides/networks.md has its settings).
    ("equipoise/TMaze100-v0", "r2d2"): {
        "policy.unroll": 40,
        "policy.batch": 16,
        "algorithm.gamma": 0.98,
        "algorithm.n_step": 10,
        "algorithm.burn_in": 0,
        "algorithm.length": 140,
        "algorithm.core": "mingru",
        "algorithm.core_layers": 2,
        "algorithm.core_span": 120,
        "algorithm.core_size": 64,
        "algorithm.hidden": (32,),
        "optimizer.learning_rate": 0.002,
        "optimizer.epsilon": 1e-08,
        "algorithm.target_every": 50,
        "replay.capacity": 200_000,
        "replay.starts_at": 20_000,
        "replay.updates": 16,
        "replay.selector": "prioritized",
        "replay.alpha": 0.9,
        "replay.beta": 0.6,
        "placement.actors": 1,
        "placement.envs_per_actor": 32,
        "placement.max_lag": 1,
        "schedule.steps": 400_000,
    },
    # Found here, for a delay of 50; docs/guides/networks.md has minGRU's settings.
    ("equipoise/RepeatFirst-v0", "ppo"): {
        "policy.unroll": 64,
        "policy.batch": 32,
        "algorithm.gamma": 0.99,
        "algorithm.entropy": 0.01,
        "algorithm.epochs": 2,
        "algorithm.minibatches": 4,
        "algorithm.core": "gtrxl",
        "algorithm.core_window": 64,
        "algorithm.core_size": 32,
        "algorithm.hidden": (32,),
        "optimizer.learning_rate": 0.001,
        "placement.actors": 1,
        "placement.envs_per_actor": 32,
        "placement.max_lag": 0,
        "schedule.steps": 600_000,
    },
}
