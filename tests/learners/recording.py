"""PPO and IMPALA that keep what they were given, for the process that they run in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from equipoise.algorithms._actor_critic import ActorCriticAlgorithm
from equipoise.algorithms.impala import IMPALA
from equipoise.algorithms.ppo import PPO
from equipoise.types import Batch, LossOutput, Pool, Trajectory, Tree

# copies of what came; how far the policy that judges is from that which acted; statistics
BATCHES: list[dict[str, Any]] = []


@dataclass(frozen=True, kw_only=True)
class Recording(ActorCriticAlgorithm):
    normalize_obs: bool = True

    def targets(
        self,
        net: Any,
        target_net: Any,
        data: Trajectory,
        *,
        rng: torch.Generator,
        pool: Pool,
        **heads: Any,  # of PPO
    ) -> Tree:
        out = net.unroll(data.obs, data.first, data.state)[0]
        gap = out.policy[: data.shape[0]].logp(data.action) - data.behaviour["logp"]
        fields = {
            "obs": data.obs,
            "first": data.first,
            "scaled": data.reward,
            "mask": data.mask,
            **data.context,
        }
        BATCHES.append({name: x.numpy().copy() for name, x in fields.items()})
        BATCHES[-1] |= {"gap": float(gap[data.mask].abs().max()), "counts": {float(net.norm.count)}}
        return super().targets(net, target_net, data, rng=rng, pool=pool, **heads)

    def absorb(self, net: Any, data: Trajectory, *, pool: Pool) -> None:
        BATCHES[-1]["reward"] = data.reward.numpy().copy()
        super().absorb(net, data, pool=pool)

    def loss(
        self,
        net: Any,
        target_net: Any,
        batch: Batch,
        *,
        group: str,
        step: float,
        rng: torch.Generator,
    ) -> LossOutput | None:
        BATCHES[-1]["counts"] |= {float(net.norm.count)}
        return super().loss(net, target_net, batch, group=group, step=step, rng=rng)  # type: ignore[safe-super]


@dataclass(frozen=True, kw_only=True)
class RecordingPPO(Recording, PPO):
    pass


@dataclass(frozen=True, kw_only=True)
class RecordingIMPALA(Recording, IMPALA):
    pass
