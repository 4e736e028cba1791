"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347) with GAE (Schulman et al.
2015, arXiv:1506.02438).

Deviations from the paper's code, in the order of their effect: advantages are normalised once a
batch, not once a minibatch, so that sums over minibatches and learners add up exactly; values are
computed by the learner at the start of a batch, not by the actors; value clipping is off by
default.

``target_kl`` is Stable-Baselines3's: a minibatch on which the mean of (r - 1) - log r exceeds 1.5
``target_kl`` is the batch's last one, and no step is taken for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import nn

from equipoise.algorithms._actor_critic import (
    ActorCriticAlgorithm,
    clipped_loss,
    over_real_rows,
    standardized,
    unrolled,
)
from equipoise.facts import KEPT, Help
from equipoise.nets import ActorCritic
from equipoise.returns import gae
from equipoise.types import (
    Batch,
    LossOutput,
    NonNegativeFloat,
    NonNegativeInt,
    Optimizer,
    Pool,
    PositiveFloat,
    PositiveInt,
    Trajectory,
    Tree,
    UnitInterval,
    ValueHead,
)


@dataclass(frozen=True, kw_only=True)
class PPO(ActorCriticAlgorithm):
    defaults: ClassVar[Mapping[str, object]] = {"placement.max_lag": 0}
    default_optimizer: ClassVar[Optimizer] = Optimizer(schedule="constant")
    minibatch_rows: ClassVar[int] = 64
    max_sensible_lag: ClassVar[float | None] = 8.0

    lambda_: Annotated[UnitInterval, Help("GAE lambda")] = 0.95
    clip: Annotated[NonNegativeFloat, Help("Clip range of the probability ratio")] = 0.2
    anneal_clip: Annotated[bool, Help("Reduce the clip range linearly to 0 over the schedule")] = (
        False
    )
    value_clip: Annotated[
        NonNegativeFloat,
        Help(
            "Clip range of the value; 0 turns it off",
            "It is relative to the value at the start of the batch.",
        ),
    ] = 0.0
    entropy: Annotated[NonNegativeFloat, Help("Entropy coefficient")] = 0.0
    value: Annotated[NonNegativeFloat, Help("Value loss coefficient")] = 0.5
    normalize_advantage: Annotated[bool, Help("Normalise the advantages of a batch")] = True
    target_kl: Annotated[
        PositiveFloat | None,
        Help(
            "KL limit that ends a batch early; none turns it off",
            "The batch ends if approx_kl exceeds 1.5 times this limit.",
        ),
    ] = None
    value_warmup: Annotated[
        NonNegativeInt,
        Help("First updates that train only the value", "Try 10 when you start from a bc run."),
    ] = 0
    value_heads: Annotated[
        PositiveInt,
        Help(
            "Value outputs: one, and one for each term with a head",
            "`reward.TERM.head` sets it.",
        ),
        KEPT,
    ] = 1
    epochs: PositiveInt = 10
    minibatches: PositiveInt = 4

    @property
    def values(self) -> int:
        return self.value_heads

    def held(self, net: ActorCritic, version: int) -> list[nn.Parameter]:
        """Until the warm-up is over: all but the value's own layers."""
        if version >= self.value_warmup:
            return []
        return [one for name, one in net.named_parameters() if not name.startswith("value_")]

    def targets(
        self,
        net: ActorCritic,
        target_net: object,
        data: Trajectory,
        *,
        rng: torch.Generator,
        pool: Pool,
        heads: Sequence[ValueHead] = (),
    ) -> Tree:
        """``heads``: of terms of the rewards; their advantages are added with their weights."""
        value = net.unroll(data.obs, data.first, data.state)[0].value
        out = gae(
            reward=data.reward,
            discount=data.discount(self.gamma),
            value=value[..., 0] if heads else value,
            lambda_=self.lambda_,
            mask=data.mask,
        )
        advantage, target = out.advantage, out.target
        if heads:
            outs = [
                gae(
                    reward=head.reward,
                    discount=head.discount,
                    value=value[..., number],
                    lambda_=self.lambda_,
                    mask=head.mask,
                )
                for number, head in enumerate(heads, 1)
            ]
            for head, its in zip(heads, outs, strict=True):
                advantage = advantage + head.weight * its.advantage
            target = torch.stack([target, *(its.target for its in outs)], -1)
        if self.normalize_advantage:
            advantage = standardized(advantage, data.mask, pool)
        return {"advantage": advantage, "target": target, "value": value[:-1]}

    def loss(
        self,
        net: ActorCritic,
        target_net: object,
        batch: Batch,
        *,
        group: str,
        step: float,
        rng: torch.Generator,
    ) -> LossOutput | None:
        """Summed -min(r A, clip(r) A) + value (V - target)^2 / 2 - entropy H (Eqs. 7 and 9)."""
        data, targets = batch.data, batch.targets
        policy, value = unrolled(net, data)
        clip = self.clip * (1.0 - step) if self.anneal_clip else self.clip
        log_ratio = policy.logp(data.action) - data.behaviour["logp"]
        ratio = log_ratio.exp()
        policy_loss = clipped_loss(ratio, targets["advantage"], clip)
        error = (value - targets["target"]).square()
        if self.value_clip > 0:
            near = targets["value"] + (value - targets["value"]).clamp(
                -self.value_clip, self.value_clip
            )
            error = torch.maximum(error, (near - targets["target"]).square())
        if self.value_heads > 1:
            error = error.sum(-1)
        entropy = policy.entropy()
        terms = policy_loss + (0.5 * self.value) * error - self.entropy * entropy
        kl = (ratio - 1.0) - log_ratio
        out = over_real_rows(
            data.mask,
            terms,
            policy_loss=policy_loss,
            value_error=error,
            entropy=entropy,
            approx_kl=kl,
            clip_fraction=((ratio - 1.0).abs() > clip).float(),
        )
        if self.target_kl is None:
            return out
        return replace(out, excess=((kl.detach() - 1.5 * self.target_kl) * data.mask).sum())
