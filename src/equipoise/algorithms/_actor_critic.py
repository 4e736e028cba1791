"""What the actor-critic algorithms share: the network's shape, and acting by sampling from its policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from equipoise.nets import ActorCritic
from equipoise.types import Algorithm, Count, EnvSpec, Tree


@dataclass(frozen=True, kw_only=True)
class ActorCriticAlgorithm(Algorithm):
    hidden: tuple[Count, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    shared: bool = False  # one torso for policy and value
    core: Literal["none", "lstm", "gru"] = "none"
    core_size: Count = 64

    def network(self, spec: EnvSpec) -> nn.Module:
        return ActorCritic(
            spec, hidden=self.hidden, activation=self.activation, shared=self.shared, core=self.core, core_size=self.core_size
        )

    def act(self, net: Any, obs: Tree, first: Tensor, state: Tree, *, explore: Tree, noise: Tensor) -> tuple[Tree, Tree, Tree]:
        policy, state = net.policy(obs, first, state)
        action, logp = policy.sample_and_logp(noise)
        return action, {"logp": logp}, state

    def best(self, net: Any, obs: Tree, first: Tensor, state: Tree) -> tuple[Tree, Tree]:
        policy, state = net.policy(obs, first, state)
        return policy.mode(), state
