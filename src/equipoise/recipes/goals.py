"""Goal envs."""

from __future__ import annotations

from collections.abc import Mapping

RECIPES: dict[tuple[str, str], Mapping[str, object]] = {
    # After Andrychowicz et al. 2017, section 3.1 and appendix A: 15 bits, one layer of 256, lr
    # 1e-3, gamma 0.98, a soft target, four goals of five from hindsight.
    #
    # Found here: rounds of 64 steps of 16 streams, and 16 updates of 128 items after each; the
    # final epsilon is 0.2.
    ("equipoise/BitFlip-v0", "dqn"): {
        "policy.unroll": 4,
        "policy.batch": 128,
        "algorithm.hidden": (256,),
        "algorithm.gamma": 0.98,
        "optimizer.learning_rate": 0.001,
        "algorithm.epsilon": 0.2,
        "algorithm.epsilon_steps": 20_000,
        "algorithm.target_every": 1,
        "algorithm.tau": 0.05,
        "replay.capacity": 500_000,
        "replay.starts_at": 1_000,
        "replay.updates": 16,
        "replay.relabel": 0.8,
        "placement.actors": 1,
        "placement.envs_per_actor": 16,
        "placement.max_lag": 1,
        "schedule.steps": 40_000,
    },
    # After rl-baselines3-zoo's SAC with hindsight for FetchReach (64-64, lr 1e-3, gamma 0.95, batch
    # 256, four goals of five from hindsight, an update a step, 2e4 steps).
    #
    # Deviations: observations are not normalised; a round is four steps of four streams. It needs
    # gymnasium-robotics.
    ("gymnasium_robotics:FetchReach-v4", "sac"): {
        "source.metrics": ("is_success",),
        "policy.unroll": 1,
        "policy.batch": 256,
        "algorithm.hidden": (64, 64),
        "algorithm.gamma": 0.95,
        "optimizer.learning_rate": 0.001,
        "algorithm.random_steps": 1_000,
        "replay.capacity": 1_000_000,
        "replay.starts_at": 1_000,
        "replay.updates": 4,
        "replay.relabel": 0.8,
        "placement.actors": 1,
        "placement.envs_per_actor": 4,
        "placement.max_lag": 1,
        "schedule.steps": 20_000,
    },
}
