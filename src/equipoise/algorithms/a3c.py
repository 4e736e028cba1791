"""A3C, asynchronous advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783): n-step returns of
short unrolls, uncorrected.

For the rows of an unroll, with R_t the longest n-step return within it (algorithm S3 there):

    L = -(R_t - V_t) log pi(a_t) + value (R_t - V_t)^2 / 2 - entropy H(pi)

Deviation: the paper's actors compute gradients themselves and add them to shared parameters without
a lock. Here actors send their short unrolls, and the learner computes the gradient, at its own
parameters, one unroll after another: no update is lost or torn, and the experience is stale (by up
to ``max_lag`` versions, or without a bound), not the gradient. The loss is a mean over real rows;
torch's RMSProp has epsilon outside the root.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from equipoise.algorithms._actor_critic import ActorCriticAlgorithm, over_real_rows
from equipoise.facts import Help
from equipoise.nets import ActorCritic
from equipoise.returns import lambda_returns
from equipoise.types import Batch, LossOutput, NonNegativeFloat, Optimizer, UnitInterval


@dataclass(frozen=True, kw_only=True)
class A3C(ActorCriticAlgorithm):
    default_optimizer: ClassVar[Optimizer] = Optimizer(name="rmsprop", learning_rate=7e-4)
    max_sensible_lag: ClassVar[float | None] = 16.0
    defaults: ClassVar[Mapping[str, object]] = {"policy.unroll": 8, "placement.max_lag": None}

    lambda_: Annotated[UnitInterval, Help("Lambda of the returns; 1 gives n-step returns")] = 1.0
    entropy: Annotated[NonNegativeFloat, Help("Entropy coefficient")] = 0.01
    value: Annotated[NonNegativeFloat, Help("Value loss coefficient")] = 0.5

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
        """L above, summed over real rows; no gradient flows into R - V."""
        data = batch.data
        rows = data.reward.shape[0]
        out = net.unroll(data.obs, data.first, data.state)[0]
        policy, value = out.policy[:rows], out.value
        returns = lambda_returns(
            reward=data.reward,
            discount=data.discount(self.gamma),
            value=value,
            lambda_=self.lambda_,
            mask=data.mask,
        )
        logp = policy.logp(data.action)
        policy_loss = -returns.advantage * logp
        error = (returns.target - value[:rows]).square()
        entropy = policy.entropy()
        log_ratio = logp - data.behaviour["logp"]
        terms = policy_loss + (0.5 * self.value) * error - self.entropy * entropy
        return over_real_rows(
            data.mask,
            terms,
            policy_loss=policy_loss,
            value_error=error,
            entropy=entropy,
            approx_kl=(log_ratio.exp() - 1.0) - log_ratio,
        )
