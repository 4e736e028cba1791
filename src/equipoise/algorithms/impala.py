"""IMPALA (Espeholt et al. 2018, arXiv:1802.01561): an actor-critic on V-trace targets, one pass
over each batch.

Deviations from the paper: the loss is the mean over real rows, not the sum over the batch, so the
learning rate does not depend on the size of a batch; the defaults are for small control problems,
the recipes name the paper's for Atari.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from equipoise.algorithms._actor_critic import ActorCriticAlgorithm, over_real_rows
from equipoise.facts import Help
from equipoise.nets import ActorCritic
from equipoise.returns import vtrace
from equipoise.types import Batch, LossOutput, NonNegativeFloat, Optimizer, UnitInterval


@dataclass(frozen=True, kw_only=True)
class IMPALA(ActorCriticAlgorithm):
    default_optimizer: ClassVar[Optimizer] = Optimizer(learning_rate=6e-4)
    max_sensible_lag: ClassVar[float | None] = 16.0

    lambda_: Annotated[UnitInterval, Help("V-trace lambda")] = 1.0
    clip_rho: Annotated[
        NonNegativeFloat, Help("Clip limit of rho, the V-trace weight of a TD error")
    ] = 1.0
    clip_c: Annotated[NonNegativeFloat, Help("Clip limit of c, the V-trace weight of a trace")] = (
        1.0
    )
    clip_pg_rho: Annotated[NonNegativeFloat, Help("Clip limit of rho in the policy gradient")] = 1.0
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
        """Section 4.2: rho (r + gamma v' - V) grad log pi, (v - V)^2 / 2, entropy; summed."""
        data = batch.data
        rows = data.reward.shape[0]
        out = net.unroll(data.obs, data.first, data.state)[0]
        policy, value = out.policy[:rows], out.value
        logp = policy.logp(data.action)
        log_rho = logp.detach() - data.behaviour["logp"]
        corrected = vtrace(
            reward=data.reward,
            discount=data.discount(self.gamma),
            value=value,
            log_rho=log_rho,
            lambda_=self.lambda_,
            clip_rho=self.clip_rho,
            clip_c=self.clip_c,
            clip_pg_rho=self.clip_pg_rho,
            mask=data.mask,
        )
        policy_loss = -corrected.advantage * logp
        error = (corrected.target - value[:rows]).square()
        entropy = policy.entropy()
        terms = policy_loss + (0.5 * self.value) * error - self.entropy * entropy
        rho = log_rho.exp()
        return over_real_rows(
            data.mask,
            terms,
            policy_loss=policy_loss,
            value_error=error,
            entropy=entropy,
            rho=rho,
            rho_squared=rho.square(),
        )
