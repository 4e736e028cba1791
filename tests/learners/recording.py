"""PPO and IMPALA that keep what they were given, for the process that they run in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from equipoise.algorithms.impala import IMPALA
from equipoise.algorithms.ppo import PPO
from equipoise.types import Trajectory, Tree

BATCHES: list[dict[str, Any]] = []  # obs, first, reward, mask, stream, start as copies; "gap", "count", "scaled"


def keep(algorithm: Any, net: Any, data: Trajectory) -> None:
    """How far the policy that judges is from the one that acted, and which statistics it has, before a batch is learned."""
    out = net.unroll(data.obs, data.first, data.state)[0]
    logp = out.policy[: data.shape[0]].logp(data.action)
    gap = (logp - data.behaviour["logp"])[data.mask].abs().max()
    fields = {"obs": data.obs, "first": data.first, "reward": data.reward, "mask": data.mask, **data.context}
    BATCHES.append({name: x.numpy().copy() for name, x in fields.items()})
    BATCHES[-1] |= {
        "gap": float(gap), "count": float(net.norm.count), "scaled": algorithm.rewards(net, data).clone(),
        "factor": float(net.returns.factor),
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RecordingPPO(PPO):
    normalize_obs: bool = True
    normalize_reward: bool = True

    def targets(self, net: Any, target_net: Any, data: Trajectory, *, rng: torch.Generator) -> Tree:
        keep(self, net, data)
        return super().targets(net, target_net, data, rng=rng)


@dataclass(frozen=True, kw_only=True)
class RecordingIMPALA(IMPALA):
    normalize_obs: bool = True
    normalize_reward: bool = True

    def targets(self, net: Any, target_net: Any, data: Trajectory, *, rng: torch.Generator) -> Tree:
        keep(self, net, data)
        return {}
