"""Goal envs."""

from __future__ import annotations

from typing import Any

RECIPES: dict[tuple[str, str], dict[str, Any]] = {
    # After Andrychowicz et al. 2017, section 3.1 and appendix A: 15 bits, one layer of 256, lr 1e-3, gamma 0.98, a soft
    # target, four goals of five from hindsight.
    #
    # Found here: rounds of 64 steps of 16 streams, and 16 updates of 128 items after each; the final epsilon is 0.2.
    ("equipoise/BitFlip-v0", "dqn"): {
        "policy.unroll": 4, "policy.batch": 128,
        "algorithm.hidden": (256,), "algorithm.gamma": 0.98, "optimizer.learning_rate": 0.001,
        "algorithm.epsilon": 0.2, "algorithm.epsilon_steps": 20_000, "algorithm.target_every": 1,
        "algorithm.tau": 0.05,
        "replay.capacity": 500_000, "replay.starts_at": 1_000, "replay.updates": 16, "replay.relabel": 0.8,
        "placement.actors": 1, "placement.envs_per_actor": 16, "placement.max_lag": 1, "schedule.steps": 40_000,
    },
}  # fmt: skip
