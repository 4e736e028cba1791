"""What the actor-critic algorithms share: the network's shape, acting by sampling from its policy, sums over real rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from equipoise.nets import ActorCritic
from equipoise.types import Algorithm, EnvSpec, LossOutput, Tree


@dataclass(frozen=True, kw_only=True)
class ActorCriticAlgorithm(Algorithm):
    hidden: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    shared: bool = False  # one torso for policy and value
    core: Literal["none", "lstm", "gru"] = "none"
    core_size: int = 64
    squash: bool = False  # Box actions by tanh into their bounds, instead of clipped to them

    def network(self, spec: EnvSpec) -> nn.Module:
        return ActorCritic(
            spec, hidden=self.hidden, activation=self.activation, shared=self.shared, core=self.core, core_size=self.core_size,
            squash=self.squash,
        )  # fmt: skip

    def act(self, net: Any, obs: Tree, first: Tensor, state: Tree, *, explore: Tree, noise: Tensor) -> tuple[Tree, Tree, Tree]:
        policy, state = net.policy(obs, first, state)
        action, logp = policy.sample_and_logp(noise)
        return action, {"logp": logp}, state

    def best(self, net: Any, obs: Tree, first: Tensor, state: Tree) -> tuple[Tree, Tree]:
        policy, state = net.policy(obs, first, state)
        return policy.mode(), state


def standardized(advantage: Tensor, mask: Tensor) -> Tensor:
    """[T, B] with mean 0 and deviation 1 over the real rows of a batch; as it came where there is none (all aborted)."""
    real = advantage[mask]
    return (advantage - real.mean()) / (real.std(correction=0) + 1e-8) if len(real) else advantage


def over_real_rows(mask: Tensor, terms: Tensor, **shown: Tensor) -> LossOutput:
    """The loss is the sum of ``terms`` [T, B] over real rows; each of ``shown`` [T, B] is a metric, its mean over them."""
    count = mask.sum()
    with torch.no_grad():
        sums = (torch.stack(list(shown.values())) * mask).sum((1, 2))
    return LossOutput(
        loss=(terms * mask).sum(), count=count, metrics={name: (total, count) for name, total in zip(shown, sums, strict=True)}
    )
