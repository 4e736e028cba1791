"""REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv:2402.14740): the baseline of a sample is
what the others got.

    R = reward - beta sum_n log pi(n) / reference(n),   A_i = R_i - mean of R_j over the group, j != i

    loss = mean over samples of -min(r A, clip(r) A),   r = prod_n pi(n) / pi_anchor(n)

A whole completion is one action. On policy the gradient is that of E[R], so with KL in the reward
the policy ends at reference exp(reward / beta), normalised.

Deviations: r is clipped, as in TRL (``epsilon=0`` is the paper's loss); with ``importance=token``
each token has its own ratio, which has the same gradient on policy, and bears samples of older
policies that a product of many ratios does not bear.
"""  # noqa: E501

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor

from equipoise.algorithms._text import PolicyText, mean_weight, per_sample, spread
from equipoise.facts import Help, Range
from equipoise.returns import leave_one_out
from equipoise.types import Packed, Pool, Tree


@dataclass(frozen=True, kw_only=True)
class RLOO(PolicyText):
    num_generations: Annotated[int, Range(2)] = 8
    importance: Annotated[
        Literal["sequence", "token"],
        Help(
            "Probability ratio per sample or per token",
            "sequence: the product over the sample's tokens.",
        ),
    ] = "sequence"
    loss_type: Annotated[
        Literal["grpo"],
        Help(
            "Averaging of the loss; always grpo here",
            "Each sample counts once, however long it is.",
        ),
    ] = "grpo"
    kl: Literal["k1", "k2", "k3"] = "k1"
    kl_in: Literal["loss", "reward"] = "reward"

    def advantage(
        self, data: Packed, reward: Tensor, kept: Tensor, seen: dict[str, Tensor], pool: Pool
    ) -> Tree:
        total = per_sample(reward, data)
        return {"advantage": spread(total - leave_one_out(value=total, group=data.group), data)}

    def weights(self, data: Packed, kept: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        weight = (
            mean_weight(data, kept) if self.importance == "sequence" else kept.to(data.logp.dtype)
        )
        return weight, first.to(data.logp.dtype)

    def ratio_of(self, log_ratio: Tensor, data: Packed) -> Tensor:
        return (
            spread(per_sample(log_ratio, data), data)
            if self.importance == "sequence"
            else log_ratio
        )
