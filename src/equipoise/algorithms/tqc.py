"""TQC, truncated quantile critics (Kuznetsov et al. 2020, arXiv:2005.04269): SAC whose critics
learn quantiles of the return.

N critics have M quantiles theta_im each. The N M quantiles of the target critics at (s', a') are
sorted, and the largest ``drop`` N of them are left out, so that how far a target is held down is
set finely. With z_(1) <= z_(2) <= ... in that order,

    y_k   = R + gamma^n (z_(k) - alpha log pi(a'|s')),  k = 1 .. N (M - drop)
    L_Z   = w mean_i mean_m mean_k |tau_m - 1{y_k < theta_im}| huber_1(y_k - theta_im)
    L_pi  = w (alpha log pi(a|s) - mean_im theta_im(s, a)),  a ~ pi(s)

tau_m = (m - 1/2) / M. The temperature and all else is SAC's (``sac.py``). Actions are a Box.

Deviations: two critics, not five, as in sb3-contrib; the deviations of ``sac.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from equipoise.algorithms._off_policy import weighed
from equipoise.algorithms.dqn import quantile_huber
from equipoise.algorithms.sac import SAC, SoftActorCritic
from equipoise.facts import KEPT, Help
from equipoise.nets.actor import Bounds
from equipoise.nets.twin import TwinCritic
from equipoise.types import Batch, EnvSpec, LossOutput, NonNegativeInt, PositiveInt, Tree


@dataclass(frozen=True, kw_only=True)
class TQC(SAC):
    critics: Annotated[PositiveInt, Help("Number of critics"), KEPT] = 2
    quantiles: Annotated[PositiveInt, Help("Quantiles per critic"), KEPT] = 25
    drop: Annotated[
        NonNegativeInt,
        Help(
            "Largest quantiles that a target drops, per critic",
            "They are dropped from the pooled quantiles of all critics.",
        ),
    ] = 2

    def network(self, spec: EnvSpec) -> SoftActorCritic:
        if self.drop >= self.quantiles:
            raise ValueError(
                f"algorithm.drop: expected less than algorithm.quantiles={self.quantiles}, got "
                f"{self.drop}"
            )
        bounds = Bounds(spec.action, "tqc")
        actor = self.gaussian(spec, bounds.size)
        critic = TwinCritic(
            spec,
            action_size=bounds.size,
            outputs=self.quantiles,
            members=self.critics,
            **self.shape,
        )
        return self.joined(actor, critic, bounds)

    def believed(self, q: Tensor) -> Tensor:
        """The smallest quantiles [N (M - drop), B] of all critics, of theta' [N, B, M]."""
        kept = self.critics * (self.quantiles - self.drop)
        return q.transpose(1, 2).flatten(0, 1).sort(0).values[:kept]

    def critic_loss(self, net: SoftActorCritic, obs: Tree, batch: Batch) -> LossOutput:
        theta, y = self.critic_values(net, obs, batch.data.action[0]), batch.targets["target"].t()
        terms = quantile_huber(theta, y, 1.0).mean(0) / self.quantiles
        q = theta.mean((0, 2))
        td_error = (y.mean(-1) - q).abs()
        return weighed(
            batch.weight, terms, priority=td_error, critic_loss=terms, td_error=td_error, q=q
        )

    def value(self, net: SoftActorCritic, obs: Tree, action: Tensor) -> Tensor:
        return net.critic.mean(obs, action)
