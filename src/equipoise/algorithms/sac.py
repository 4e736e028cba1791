"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1801.01290, and with a learned temperature
arXiv:1812.05905).

Twin critics Q_i, an actor pi, a temperature alpha; s' is the observation ``n_step`` rows on, R the
rewards until there:

    y       = R + gamma^n E_{a' ~ pi(s')} [min_i Q'_i(s', a') - alpha log pi(a'|s')]
    L_Q     = w sum_i (Q_i(s, a) - y)^2 / 2
    L_pi    = w E_{a ~ pi(s)} [alpha log pi(a|s) - min_i Q_i(s, a)]
    L_alpha = w log(alpha) (H(pi(s')) - target entropy)

(1812.05905, Eqs. 5, 9, 18). Box actions: E is of one reparametrised sample of a Gaussian bent into
the bounds by tanh, entropies are of actions scaled to -1 .. 1, and the target is -dim unless set.
Discrete actions (Christodoulou 2019, arXiv:1910.07207): E is the sum over all actions, and the
target is 0.98 log of the number of actions that are allowed. Actor and critics share nothing; the
target network is of the critics alone.

With ``sde_every`` the noise of Box actions is a function of the state that is drawn again every
``sde_every`` steps of a stream (generalised state-dependent exploration, Raffin et al. 2021,
arXiv:2005.05719; ``nets/actor.py``). The loss stays as it stands above, pi being the distribution
over all such functions.

Deviations: the temperature's loss is at s', for which y has already needed log pi; it is learned
as its logarithm (as in the authors' code); a return of several steps has the entropy of its last
one only; the first ``random_steps`` are uniform.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import Parameter

from equipoise import tree
from equipoise.algorithms._off_policy import (
    OffPolicyAlgorithm,
    at_random,
    critic_loss,
    standard_normal,
    uniform_probability,
    uniform_where,
    weighed,
)
from equipoise.facts import KEPT, Help, Read
from equipoise.nets.actor import (
    Body,
    Bounds,
    CategoricalActor,
    GaussianActor,
    StateNoiseActor,
    normal,
)
from equipoise.nets.distributions import Categorical, taken_by
from equipoise.nets.q import any_of
from equipoise.nets.torso import MLP
from equipoise.nets.twin import TwinCritic
from equipoise.types import (
    Array,
    Batch,
    EnvSpec,
    Fraction,
    LossOutput,
    NonNegativeInt,
    Pool,
    PositiveFloat,
    PositiveInt,
    Trajectory,
    Tree,
)

# share of the greatest entropy that a Discrete policy keeps (Christodoulou 2019, code)
OF_UNIFORM = 0.98


class SoftActorCritic(nn.Module):
    """actor, critic and log_temperature; ``bounds`` if actions are a Box, else None."""

    log_temperature: Tensor

    def __init__(
        self,
        actor: Any,  # a GaussianActor, or a CategoricalActor
        critic: TwinCritic,
        bounds: Bounds | None,
        *,
        temperature: float,
        learned: bool,
    ) -> None:
        super().__init__()
        self.actor, self.critic, self.bounds = actor, critic, bounds
        log_temperature = torch.tensor(math.log(temperature))
        if learned:
            self.log_temperature = Parameter(log_temperature)
        else:
            self.register_buffer("log_temperature", log_temperature)

    def initial_state(self, batch: int) -> Tree:
        return {}


@dataclass(frozen=True, kw_only=True)
class SAC(OffPolicyAlgorithm):
    stochastic: ClassVar[bool] = True
    # One stream and an update a step, as the authors have it: more streams are as many steps
    # without news.
    defaults: ClassVar[Mapping[str, object]] = {"replay.updates": 1, "placement.envs_per_actor": 1}

    temperature: Annotated[
        PositiveFloat,
        Help(
            "Initial entropy coefficient (temperature)",
            "It stays fixed if `learn_temperature` is false.",
        ),
    ] = 1.0
    learn_temperature: Annotated[
        bool, Help("Adapt the temperature to the target entropy"), KEPT
    ] = True
    target_entropy: Annotated[
        float | None,
        Help(
            "Target entropy in nats; none follows the action space",
            "none uses minus the dimensions of a Box, 0.98 log(actions) of a Discrete.",
        ),
        Read("learn_temperature", why="the temperature stays as it is"),
    ] = None
    random_steps: Annotated[
        NonNegativeInt, Help("Env steps with uniformly random actions at the start")
    ] = 1_000
    value_warmup: Annotated[
        NonNegativeInt,
        Help(
            "First updates that train only the critics", "Try 5,000 when you start from a bc run."
        ),
    ] = 0
    sde_every: Annotated[
        NonNegativeInt,
        Help(
            "Env steps between new gSDE noise; 0 turns gSDE off",
            "For Box actions: the noise is one function of the state for this many "
            "steps of an env.",
        ),
        KEPT,
    ] = 0
    sde_log_std: Annotated[
        float,
        Help("Initial log standard deviation of the gSDE noise weights"),
        Read("sde_every", why="the noise is no function of the state"),
        KEPT,
    ] = -3.0
    target_every: PositiveInt = 1
    tau: Fraction = 0.005

    def network(self, spec: EnvSpec) -> SoftActorCritic:
        if isinstance(spec.action, spaces.Box):
            bounds = Bounds(spec.action, "sac")
            gaussian = self.gaussian(spec, bounds.size)
            return self.joined(
                gaussian, TwinCritic(spec, action_size=bounds.size, **self.shape), bounds
            )
        if not isinstance(spec.action, spaces.Discrete):
            raise ValueError(
                "action space: sac expected a Box or a Discrete, got "
                f"{spec.action}{taken_by(spec.action)}"
            )
        if self.sde_every:
            raise ValueError(
                f"algorithm.sde_every: must be 0 unless actions are a Box, got {self.sde_every}"
            )
        categorical = CategoricalActor(spec, **self.shape)
        return self.joined(
            categorical, TwinCritic(spec, outputs=categorical.actions, **self.shape), None
        )

    def gaussian(self, spec: EnvSpec, size: int, body: Body = MLP) -> GaussianActor:
        """The actor of Box actions."""
        if not self.sde_every:
            return GaussianActor(spec, size=size, body=body, **self.shape)
        if not self.hidden:
            raise ValueError(
                "algorithm.sde_every: expected a hidden layer in algorithm.hidden, of which the "
                "noise is a function, got none"
            )
        return StateNoiseActor(spec, size=size, log_std=self.sde_log_std, body=body, **self.shape)

    def joined(
        self, actor: nn.Module, critic: TwinCritic, bounds: Bounds | None
    ) -> SoftActorCritic:
        return SoftActorCritic(
            actor, critic, bounds, temperature=self.temperature, learned=self.learn_temperature
        )

    def groups(self, net: Any) -> dict[str, list[Parameter]]:
        groups = {"critic": list(net.critic.parameters()), "actor": list(net.actor.parameters())}
        return groups | ({"temperature": [net.log_temperature]} if self.learn_temperature else {})

    def due(self, group: str, version: int) -> bool:
        return group == "critic" or version >= self.value_warmup

    def followed(self, net: SoftActorCritic) -> nn.Module:
        return net.critic

    def explore(self, stream: Array, streams: int, step: int) -> Tree:
        return at_random(stream, self.random_steps, step)

    def held_noise(self, net: SoftActorCritic) -> tuple[int, int]:
        return (net.actor.log_std.numel(), self.sde_every) if self.sde_every else (0, 1)

    def act(
        self,
        net: SoftActorCritic,
        obs: Tree,
        first: Tensor,
        state: Tree,
        *,
        explore: Tree,
        noise: Tensor,
    ) -> tuple[Tree, Tree, Tree]:
        if net.bounds is not None:
            if self.sde_every:
                sampled = net.actor.explored(obs, normal(noise[:, -net.actor.log_std.numel() :]))
            else:
                sampled, _ = net.actor.sample(obs, normal(noise[:, : net.bounds.size]))
            return net.bounds.to_env(uniform_where(explore, sampled, noise)), {}, state
        logits, allowed = net.actor(obs)
        action = Categorical(logits.t()).sample(noise)
        if "random" in explore:
            action = torch.where(
                explore["random"], any_of(noise[:, 0], net.actor.actions, allowed), action
            )
        return action + net.actor.start, {}, state

    def propensity(
        self,
        net: SoftActorCritic,
        obs: Tree,
        first: Tensor,
        state: Tree,
        action: Tree,
        *,
        explore: Tree,
    ) -> Tensor | None:
        if net.bounds is not None:
            drawn = net.bounds.squashed(*net.actor(obs)).logp(action)
            uniform = -net.bounds.log_volume(action)
        else:
            (logits, allowed), at = net.actor(obs), action - net.actor.start
            drawn = logits.log_softmax(-1).gather(1, at.unsqueeze(1)).squeeze(1)
            uniform = uniform_probability(logits, allowed, at).log()
        return torch.where(explore["random"], uniform, drawn) if "random" in explore else drawn

    def best(
        self, net: SoftActorCritic, obs: Tree, first: Tensor, state: Tree
    ) -> tuple[Tree, Tree]:
        if net.bounds is not None:
            return net.bounds.to_env(net.actor(obs)[0].tanh()), state
        return net.actor(obs)[0].argmax(-1) + net.actor.start, state

    def targets(
        self,
        net: SoftActorCritic,
        target_net: TwinCritic,
        data: Trajectory,
        *,
        rng: torch.Generator,
        pool: Pool,
    ) -> Tree:
        """{"target": y, "spare": how far the entropy of pi(s') is above its target}, [B] each."""
        reward, discount, obs = self.ahead(data)
        temperature = net.log_temperature.exp()
        if net.bounds is not None:
            z = standard_normal((len(reward), net.bounds.size), rng)
            action, logp = net.actor.sample(obs, z)
            value, entropy = self.believed(target_net(obs, action)), -logp
            aim = torch.full_like(entropy, -float(net.bounds.size))
        else:
            logits, allowed = net.actor(obs)
            p, entropy = policy(logits)
            value = (p * target_net(obs).amin(0)).sum(-1)
            aim = OF_UNIFORM * torch.log(
                torch.full_like(value, net.actor.actions) if allowed is None else allowed.sum(-1)
            )
        aim = aim if self.target_entropy is None else torch.full_like(aim, self.target_entropy)
        return {
            "target": reward + discount * (value + temperature * entropy),
            "spare": entropy - aim,
        }

    def loss(
        self,
        net: SoftActorCritic,
        target_net: TwinCritic,
        batch: Batch,
        *,
        group: str,
        step: float,
        rng: torch.Generator,
    ) -> LossOutput | None:
        """L_Q, L_pi or L_alpha above, summed; the gradient reaches its own group only."""
        weight, obs = batch.weight, tree.index(batch.data.obs, 0)
        if group == "critic":
            return self.critic_loss(net, obs, batch)
        if group == "temperature":
            terms = net.log_temperature * batch.targets["spare"]
            return weighed(weight, terms, temperature=net.log_temperature.exp().expand_as(terms))
        temperature = net.log_temperature.detach().exp()
        if net.bounds is not None:
            z = standard_normal((len(weight), net.bounds.size), rng)
            action, logp = net.actor.sample(obs, z)
            entropy, value = -logp, self.value(net, obs, action)
        else:
            p, entropy = policy(net.actor(obs)[0])
            with torch.no_grad():
                q = net.critic(obs).amin(0)
            value = (p * q).sum(-1)
        terms = -value - temperature * entropy
        return weighed(weight, terms, actor_loss=terms, entropy=entropy)

    def critic_loss(self, net: SoftActorCritic, obs: Tree, batch: Batch) -> LossOutput:
        q = self.critic_values(net, obs, batch.data.action[0])
        return critic_loss(batch.weight, q, batch.targets["target"])

    def believed(self, q: Tensor) -> Tensor:
        """The value that y bootstraps from [B], of Q'_i(s', a') [2, B]."""
        return q.amin(0)

    def value(self, net: SoftActorCritic, obs: Tree, action: Tensor) -> Tensor:
        """The actor's objective [B]: only its action gets a gradient."""
        return net.critic.least(obs, action)

    def critic_values(self, net: SoftActorCritic, obs: Tree, action: Tensor) -> Tensor:
        """Q_i(s, a) [2, B] of actions in the env's units."""
        if net.bounds is not None:
            return net.critic(obs, net.bounds.from_env(action))  # type: ignore[no-any-return]
        q = net.critic(obs)
        index = (action - net.actor.start).expand(2, -1).unsqueeze(-1)
        return q.gather(-1, index).squeeze(-1)  # type: ignore[no-any-return]


def policy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities [B, n] and entropy [B] of logits [B, n]."""
    logp = logits.log_softmax(-1)
    p = logp.exp()
    return p, -(p * logp).sum(-1)
