"""TD3, twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477,
algorithm 1).

Twin critics Q_i and a deterministic actor mu, a target network of each; s' is the observation
``n_step`` rows on, R the rewards until there; actions are scaled to -1 .. 1:

    a'   = clip(mu'(s') + clip(N(0, target_noise), -noise_clip, noise_clip), -1, 1)
    y    = R + gamma^n min_i Q'_i(s', a')
    L_Q  = w sum_i (Q_i(s, a) - y)^2 / 2
    L_mu = -w Q_1(s, mu(s)),  in every ``delay``-th update

Actions get normal noise of deviation ``noise`` and are clipped. The targets follow every
``target_every`` updates; the paper's d is both numbers. The actor's turn follows from the version,
which the learner counts anyway: nothing is remembered here.

Deviations: the first ``random_steps`` of all streams together are uniform; the loss of a critic is
half a square.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from equipoise import tree
from equipoise.algorithms._off_policy import (
    OffPolicyAlgorithm,
    Shape,
    at_random,
    critic_loss,
    standard_normal,
    uniform_where,
    weighed,
)
from equipoise.facts import Help, Read
from equipoise.nets.actor import Bounds, DeterministicActor, normal
from equipoise.nets.twin import TwinCritic
from equipoise.types import (
    Array,
    Batch,
    EnvSpec,
    Fraction,
    LossOutput,
    NonNegativeFloat,
    NonNegativeInt,
    Pool,
    PositiveInt,
    Trajectory,
    Tree,
)


class ActorAndCritic(nn.Module):
    """The actor and the critics, which share nothing; ``bounds``: the actions' bounds."""

    def __init__(self, spec: EnvSpec, shape: Shape) -> None:
        super().__init__()
        self.bounds = Bounds(spec.action, "td3")
        self.actor = DeterministicActor(spec, size=self.bounds.size, **shape)
        self.critic = TwinCritic(spec, action_size=self.bounds.size, **shape)

    def initial_state(self, batch: int) -> Tree:
        return {}


@dataclass(frozen=True, kw_only=True)
class TD3(OffPolicyAlgorithm):
    delay: Annotated[PositiveInt, Help("Critic updates per actor update")] = 2
    noise: Annotated[
        NonNegativeFloat,
        Help(
            "Standard deviation of the exploration noise",
            "The unit is half of the range of the Box.",
        ),
    ] = 0.1
    target_noise: Annotated[
        NonNegativeFloat, Help("Standard deviation of the target smoothing noise")
    ] = 0.2
    noise_clip: Annotated[
        NonNegativeFloat,
        Help("Clip limit of the target smoothing noise"),
        Read("target_noise", why="there is none"),
    ] = 0.5
    random_steps: Annotated[
        NonNegativeInt, Help("Env steps with uniformly random actions at the start")
    ] = 1_000
    value_warmup: Annotated[
        NonNegativeInt,
        Help(
            "First updates that train only the critics", "Try 5,000 when you start from a bc run."
        ),
    ] = 0
    target_every: PositiveInt = 2
    tau: Fraction = 0.005

    def network(self, spec: EnvSpec) -> ActorAndCritic:
        return ActorAndCritic(spec, self.shape)

    def groups(self, net: Any) -> dict[str, list[Parameter]]:
        return {"critic": list(net.critic.parameters()), "actor": list(net.actor.parameters())}

    def due(self, group: str, version: int) -> bool:
        return group == "critic" or (
            version >= self.value_warmup and (version + 1) % self.delay == 0
        )

    def explore(self, stream: Array, streams: int, step: int) -> Tree:
        return at_random(stream, self.random_steps, step)

    def act(
        self,
        net: ActorAndCritic,
        obs: Tree,
        first: Tensor,
        state: Tree,
        *,
        explore: Tree,
        noise: Tensor,
    ) -> tuple[Tree, Tree, Tree]:
        action = net.actor(obs)
        if self.noise > 0:
            action = (action + self.noise * normal(noise[:, : net.bounds.size])).clamp(-1.0, 1.0)
        return net.bounds.to_env(uniform_where(explore, action, noise)), {}, state

    def propensity(
        self,
        net: ActorAndCritic,
        obs: Tree,
        first: Tensor,
        state: Tree,
        action: Tree,
        *,
        explore: Tree,
    ) -> Tensor | None:
        """A density inside the Box; at a bound, the probability of being clipped to it."""
        if self.noise == 0:
            return None
        drawn = net.bounds.clipped_logp(net.actor(obs), self.noise, action)
        return (
            torch.where(explore["random"], -net.bounds.log_volume(action), drawn)
            if "random" in explore
            else drawn
        )

    def best(self, net: ActorAndCritic, obs: Tree, first: Tensor, state: Tree) -> tuple[Tree, Tree]:
        return net.bounds.to_env(net.actor(obs)), state

    def targets(
        self,
        net: ActorAndCritic,
        target_net: ActorAndCritic,
        data: Trajectory,
        *,
        rng: torch.Generator,
        pool: Pool,
    ) -> Tree:
        """{"target": y [B]}."""
        reward, discount, obs = self.ahead(data)
        z = standard_normal((len(reward), net.bounds.size), rng)
        smoothing = (self.target_noise * z).clamp(-self.noise_clip, self.noise_clip)
        action = (target_net.actor(obs) + smoothing).clamp(-1.0, 1.0)
        return {"target": reward + discount * target_net.critic(obs, action).amin(0)}

    def loss(
        self,
        net: ActorAndCritic,
        target_net: ActorAndCritic,
        batch: Batch,
        *,
        group: str,
        step: float,
        rng: torch.Generator,
    ) -> LossOutput | None:
        """L_Q or L_mu above, summed over items, each with a gradient to its own group only."""
        data, obs = batch.data, tree.index(batch.data.obs, 0)
        if group == "critic":
            q = net.critic(obs, net.bounds.from_env(data.action[0]))
            return critic_loss(batch.weight, q, batch.targets["target"])
        terms = -net.critic.least(obs, net.actor(obs), members=1)
        return weighed(batch.weight, terms, actor_loss=terms)
