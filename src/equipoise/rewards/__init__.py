"""Rewards: what the env gave becomes what an algorithm learns from; scaled, normalised and clipped, for every algorithm.

The step stands between the experience and ``Learns.targets``. The data keeps the env's own rewards, so reports stay raw.
"""

from equipoise.rewards.step import RewardStep, carry, scaled

__all__ = ["RewardStep", "carry", "scaled"]
