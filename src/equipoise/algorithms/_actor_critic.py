"""What the actor-critic algorithms share: the network's shape, and acting by sampling from its policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from equipoise.nets import ActorCritic
from equipoise.types import Algorithm, EnvSpec, Trajectory, Tree


@dataclass(frozen=True, kw_only=True)
class ActorCriticAlgorithm(Algorithm):
    hidden: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    shared: bool = False  # one torso for policy and value; images always share theirs
    torso: str = "auto"  # auto, mlp, nature, resnet, or module:Class for one of your own (nets/vision.py)
    core: Literal["none", "lstm", "gru"] = "none"
    core_size: int = 64
    clip_reward: float = 0.0  # learn from rewards clipped to within this of 0; 0: off

    def network(self, spec: EnvSpec) -> nn.Module:
        return ActorCritic(
            spec, hidden=self.hidden, activation=self.activation, shared=self.shared, torso=self.torso, core=self.core,
            core_size=self.core_size,
        )  # fmt: skip

    def reward(self, data: Trajectory) -> Tensor:
        """[T, B], what is learned from; the data keeps what the env gave, so that returns are the env's."""
        bound = self.clip_reward
        reward: Tensor = data.reward.clamp(-bound, bound) if bound > 0 else data.reward
        return reward

    def act(self, net: Any, obs: Tree, first: Tensor, state: Tree, *, explore: Tree, noise: Tensor) -> tuple[Tree, Tree, Tree]:
        policy, state = net.policy(obs, first, state)
        action, logp = policy.sample_and_logp(noise)
        return action, {"logp": logp}, state

    def best(self, net: Any, obs: Tree, first: Tensor, state: Tree) -> tuple[Tree, Tree]:
        policy, state = net.policy(obs, first, state)
        return policy.mode(), state
