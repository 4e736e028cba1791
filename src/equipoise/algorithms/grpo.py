"""Group-relative policy optimisation (Shao et al. 2024, arXiv:2402.03300): the worth of a sample
among the samples of its prompt.

    A = (R - mean of the group) / (deviation of the group + 1e-4)

at every token of a sample, in the clipped loss of ``_text``. Algorithms with other names are
settings of it:

    Dr. GRPO (Liu et al. 2025, arXiv:2503.20783)    scale_rewards=none, loss_type=dr_grpo
    DAPO (Yu et al. 2025, arXiv:2503.14476)         epsilon_high=0.28, equal_groups=skip, refills=8
    GSPO (Zheng et al. 2025, arXiv:2507.18071)      importance=sequence: r = (prod_n r_n)^(1 / tokens), at small epsilon
    CISPO (MiniMax 2025, arXiv:2506.13585)          surrogate=cispo: -min(r, 1 + epsilon_high) A log pi, no gradient through r

A sample that no reward graded (None) is in no mean or deviation and has A = 0.

Deviations: none to speak of. The divergence from the reference is off unless asked for, as in most
later work.
"""  # noqa: E501

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor

from equipoise.algorithms._text import PolicyText, deviation, per_sample, spread
from equipoise.facts import Help, Range
from equipoise.returns import group_mean, group_std
from equipoise.types import Packed, Pool, Tree

LEAST_DEVIATION = 1e-4  # added to it, as in TRL


@dataclass(frozen=True, kw_only=True)
class GRPO(PolicyText):
    num_generations: Annotated[int, Range(2)] = 8
    scale_rewards: Annotated[
        Literal["group", "batch", "none"],
        Help(
            "Standard deviation that divides the advantages",
            "group: of the group. batch: of the batch. none: no division.",
        ),
    ] = "group"
    importance: Annotated[
        Literal["token", "sequence"],
        Help(
            "Probability ratio per token or per sample",
            "sequence: the geometric mean over the sample's tokens (GSPO).",
        ),
    ] = "token"
    surrogate: Annotated[
        Literal["ppo", "cispo"],
        Help(
            "Clipped part of the loss",
            "ppo: the objective. cispo: the weight of the log-probability.",
        ),
    ] = "ppo"

    def advantage(
        self, data: Packed, reward: Tensor, kept: Tensor, seen: dict[str, Tensor], pool: Pool
    ) -> Tree:
        total = per_sample(reward, data)
        centred = total - group_mean(value=total, group=data.group)
        if self.scale_rewards == "group":
            centred = centred / (group_std(value=total, group=data.group) + LEAST_DEVIATION)
        elif self.scale_rewards == "batch":
            centred = centred / (deviation(total[~total.isnan()], pool) + LEAST_DEVIATION)
        return {"advantage": spread(centred, data)}

    def ratio_of(self, log_ratio: Tensor, data: Packed) -> Tensor:
        if self.importance == "token":
            return log_ratio
        tokens = per_sample(data.chosen.to(log_ratio.dtype), data).clamp(min=1.0)
        return spread(per_sample(log_ratio, data) / tokens, data)

    def objective(self, ratio: Tensor, advantage: Tensor, logp: Tensor) -> Tensor:
        if self.surrogate == "cispo":
            return ratio.detach().clamp(max=1.0 + self.high) * advantage * logp
        return super().objective(ratio, advantage, logp)
