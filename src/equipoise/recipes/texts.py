"""Recipes of the tasks that a tiny model learns from random weights, without a completion to
imitate.

Each is ours: 32 prompts of eight samples an update, a bonus for entropy, a rate that falls to 0
(with a constant one a solved task was forgotten and learned again), rewards not divided by their
deviation, which is small if nearly all samples are right: the last mistakes would count most.
"""

from __future__ import annotations

from collections.abc import Mapping

_SORT: dict[str, object] = {
    "source.model": "tiny",
    "policy.batch": 256,
    "placement.max_lag": 1,
    "optimizer.learning_rate": 5e-4,
    "optimizer.schedule": "linear",
    "algorithm.entropy": 0.04,
    "schedule.steps": 200_000,
}
# a guess is right for few rows: probabilities must stay spread until the hints are understood
_GUESS: dict[str, object] = _SORT | {
    "optimizer.learning_rate": 1e-3,
    "algorithm.entropy": 0.03,
    "algorithm.scale_rewards": "none",
    "schedule.steps": 60_000,
}

RECIPES: Mapping[tuple[str, str], Mapping[str, object]] = {
    ("sort", "grpo"): _SORT | {"algorithm.scale_rewards": "none"},
    ("sort", "rloo"): _SORT,
    ("sort", "reinforce_pp"): _SORT,
    ("sort", "token_ppo"): _SORT,
    ("guess", "grpo"): _GUESS,
    ("sort", "sft"): {
        "source.model": "tiny",
        "policy.batch": 256,
        "optimizer.learning_rate": 1e-3,
        "optimizer.schedule": "linear",
        "schedule.steps": 50_000,
    },
}
