"""The step from the env's rewards to the learned ones, and the running statistics that it needs."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from equipoise import schema
from equipoise.rewards.return_norm import ReturnNorm
from equipoise.types import Learns, Pool, Rewards, Trajectory, Tree

NORMALIZED = 10.0  # the bound of a normalised reward, in deviations of the return


def scaled(settings: Rewards, reward: Tensor) -> Tensor:
    """Scale and clip rewards of any shape; the same memory where the settings change nothing."""
    if settings.scale != 1.0:
        reward = reward * settings.scale
    return reward.clamp(-settings.clip, settings.clip) if settings.clip > 0 else reward


class RewardStep:
    """The last step, on the sum of all terms: rewards scaled, clipped or normalised. With
    ``normalize`` it keeps running statistics, else no state.

    A normalised reward is divided by the running deviation of the discounted return
    (``ReturnNorm``), and clipped. The statistics are the learner's: nothing that acts needs them.
    """

    def __init__(self, settings: Rewards, gamma: float = 0.0) -> None:
        """``gamma``: the discount, until an algorithm is followed. ``data.reward`` of the methods
        is the sum.
        """
        self._settings, self._gamma = settings, gamma
        self._norm = ReturnNorm(clip=settings.clip or NORMALIZED) if settings.normalize else None

    def follow(self, algorithm: Learns) -> None:
        gamma = getattr(algorithm, "gamma", None)
        if gamma is None and self._settings.normalize:
            raise ValueError(
                "rewards.normalize: expected an algorithm with a discount (a field gamma), got one "
                "without"
            )
        self._gamma = gamma or 0.0

    def to(self, device: torch.device) -> None:
        if self._norm is not None:
            self._norm.to(device)

    def rewards(self, data: Trajectory) -> Tensor:
        reward: Tensor = data.reward
        return scaled(self._settings, reward) if self._norm is None else self._norm.scale(reward)

    def absorb(self, data: Trajectory, pool: Pool) -> None:
        if self._norm is not None:
            there = ~data.reward.isnan()  # a sample that no function graded has no reward
            data = replace(
                data, mask=data.mask & there, reward=torch.where(there, data.reward, 0.0)
            )
            self._norm.absorb(data, self._gamma, pool)

    def state(self) -> Tree:
        """The statistics, and the return of each stream so far; {} without ``normalize``."""
        return {} if self._norm is None else self._norm.state()

    def schema(self) -> schema.Schema:
        """The schema of a saved state."""
        if self._norm is None:
            # ``load`` explains their faults
            return {"statistics?": schema.Anything(), "return?": schema.Anything()}
        return self._norm.schema()

    def load(self, state: Tree) -> None:
        """Load a state; ValueError if only one side has statistics."""
        if bool(state) != (self._norm is not None):
            had, has = ("statistics" if state else "none"), self._settings.normalize
            raise ValueError(
                f"rewards: expected a state saved with rewards.normalize={str(has).lower()}, got "
                f"{had}"
            )
        if self._norm is not None:
            self._norm.load(state)
