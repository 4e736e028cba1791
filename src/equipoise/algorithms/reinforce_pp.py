"""REINFORCE++ (Hu et al. 2025, arXiv:2501.03262): no critic, and advantages scaled by the whole
batch instead of the group.

    r_n = [n is the sample's last] (reward - baseline) - beta log pi(n) / reference(n)
    A_n = sum_{l >= 0} gamma^l r_{n+l},   to mean 0 and deviation 1 over the tokens of a step

over chosen tokens, in the clipped loss of ``_text``. ``baseline=group`` is the mean reward of the
prompt's samples, the paper's REINFORCE++-baseline; none asks for no group at all.

Deviations: none to speak of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from equipoise.algorithms._actor_critic import standardized
from equipoise.algorithms._text import PolicyText, per_sample
from equipoise.facts import Help
from equipoise.returns import at_last, group_mean, token_gae
from equipoise.types import Packed, Pool, Tree, UnitInterval


@dataclass(frozen=True, kw_only=True)
class ReinforcePP(PolicyText):
    baseline: Annotated[
        Literal["none", "group"],
        Help(
            "Baseline subtracted from a sample's reward",
            "group: the mean reward of its group. none: no baseline.",
        ),
    ] = "group"
    gamma: Annotated[UnitInterval, Help("Discount factor per token")] = 1.0
    kl: Literal["k1", "k2", "k3"] = "k1"
    kl_in: Literal["loss", "reward"] = "reward"

    def advantage(
        self, data: Packed, reward: Tensor, kept: Tensor, seen: dict[str, Tensor], pool: Pool
    ) -> Tree:
        if self.baseline == "group":
            mean = group_mean(value=per_sample(data.reward, data), group=data.group)
            reward = reward - at_last(value=mean, sample=data.sample, chosen=data.chosen)
        reward = reward.nan_to_num(0.0)
        ahead = token_gae(
            reward=reward,
            value=torch.zeros_like(reward),
            gamma=self.gamma,
            lambda_=1.0,
            sample=data.sample,
            chosen=data.chosen,
        )
        return {"advantage": standardized(ahead.advantage, kept, pool)}

    def refused(self, max_lag: int | None) -> str | None:
        if self.baseline == "group" and self.num_generations == 1:
            return (
                "algorithm.num_generations: expected at least 2 with algorithm.baseline=group, "
                "since a sample alone is its own "
                "mean, got 1; use algorithm.num_generations=2 or algorithm.baseline=none"
            )
        return super().refused(max_lag)
