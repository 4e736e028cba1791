"""Asynchronous PPO: PPO's clip over V-trace targets, both taken against a target policy that stands
still.

IMPACT (Luo et al. 2020, arXiv:1912.00167), section 3.1, with V-trace (Espeholt et al. 2018,
arXiv:1802.01561); RLlib calls it APPO. Three policies: mu acted, pi_target is a copy of the
learner's made every ``target_every`` updates, pi learns.

    R = min(mu / pi_target, clip_worker) pi / mu L = -min(R A, clip(R, 1 - clip, 1 + clip) A) + kl
    KL(pi_target || pi) + value (V - v)^2 / 2 - entropy H(pi)

v is the V-trace target of pi_target's experience as mu made it, from the target network's values,
and A = v - V_target. With mu = pi_target these are PPO's ratio, GAE, and its targets: in lockstep
with target_every=1 this is PPO.

Deviations: no circular buffer (``epochs`` passes over a batch instead); advantages are normalised
once a batch; the weight of the KL is fixed (RLlib adapts it); sums over real rows, not means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from equipoise.algorithms._actor_critic import (
    ActorCriticAlgorithm,
    clipped_loss,
    over_real_rows,
    standardized,
    unrolled,
)
from equipoise.facts import Help
from equipoise.nets import ActorCritic
from equipoise.returns import vtrace
from equipoise.types import (
    Batch,
    LossOutput,
    NonNegativeFloat,
    Pool,
    PositiveInt,
    Range,
    Trajectory,
    Tree,
    UnitInterval,
)


@dataclass(frozen=True, kw_only=True)
class APPO(ActorCriticAlgorithm):
    has_target: ClassVar[bool] = True
    max_sensible_lag: ClassVar[float | None] = 16.0

    lambda_: Annotated[UnitInterval, Help("V-trace lambda")] = 0.95
    clip: Annotated[NonNegativeFloat, Help("Clip range of the probability ratio")] = 0.2
    clip_rho: Annotated[
        NonNegativeFloat, Help("Clip limit of rho, the V-trace weight of a TD error")
    ] = 1.0
    clip_c: Annotated[NonNegativeFloat, Help("Clip limit of c, the V-trace weight of a trace")] = (
        1.0
    )
    clip_worker: Annotated[
        float,
        Range(1),
        Help("Clip limit of the ratio of acting to target policy"),
    ] = 2.0
    kl: Annotated[
        NonNegativeFloat,
        Help(
            "KL coefficient against the target policy; 0 turns it off",
            "Above 0 it costs a forward pass of the target network.",
        ),
    ] = 0.0
    entropy: Annotated[NonNegativeFloat, Help("Entropy coefficient")] = 0.01
    value: Annotated[NonNegativeFloat, Help("Value loss coefficient")] = 0.5
    normalize_advantage: Annotated[bool, Help("Normalise the advantages of a batch")] = True
    target_every: PositiveInt = 1
    epochs: PositiveInt = 2
    minibatches: PositiveInt = 4

    def targets(
        self,
        net: ActorCritic,
        target_net: ActorCritic,
        data: Trajectory,
        *,
        rng: torch.Generator,
        pool: Pool,
    ) -> Tree:
        """Exact once a batch: the target network does not move during it."""
        rows = data.reward.shape[0]
        out = target_net.unroll(data.obs, data.first, data.state)[0]
        logp, acted = out.policy[:rows].logp(data.action), data.behaviour["logp"]
        log_rho = logp - acted
        corrected = vtrace(
            reward=data.reward,
            discount=data.discount(self.gamma),
            value=out.value,
            lambda_=self.lambda_,
            log_rho=log_rho,
            clip_rho=self.clip_rho,
            clip_c=self.clip_c,
            mask=data.mask,
        )
        advantage = corrected.target - out.value[:-1]
        return {
            "advantage": standardized(advantage, data.mask, pool)
            if self.normalize_advantage
            else advantage,
            "target": corrected.target,
            # R = pi / max(pi_target, mu / clip_worker)
            "logp": torch.maximum(logp, acted - math.log(self.clip_worker)),
            "rho": log_rho.exp(),
        }

    def loss(
        self,
        net: ActorCritic,
        target_net: ActorCritic,
        batch: Batch,
        *,
        group: str,
        step: float,
        rng: torch.Generator,
    ) -> LossOutput | None:
        """L above, summed over real rows; no gradient flows into v, A or the target network."""
        data, targets = batch.data, batch.targets
        policy, value = unrolled(net, data)
        log_ratio = policy.logp(data.action) - targets["logp"]
        ratio = log_ratio.exp()
        policy_loss = clipped_loss(ratio, targets["advantage"], self.clip)
        error = (value - targets["target"]).square()
        entropy = policy.entropy()
        terms = policy_loss + (0.5 * self.value) * error - self.entropy * entropy
        shown = {
            "policy_loss": policy_loss,
            "value_error": error,
            "entropy": entropy,
            "approx_kl": (ratio - 1.0) - log_ratio,
            "clip_fraction": ((ratio - 1.0).abs() > self.clip).float(),
            "rho": targets["rho"],
            "rho_squared": targets["rho"].square(),
        }
        if self.kl > 0:
            with torch.no_grad():
                target_policy = unrolled(target_net, data).policy
            shown["kl"] = target_policy.kl(policy)
            terms = terms + self.kl * shown["kl"]
        return over_real_rows(data.mask, terms, **shown)
