"""CrossQ (Bhatt et al. 2024, arXiv:1902.05605): SAC without target networks, with batch
renormalisation and wide critics.

(s, a) and (s', a') go through the critics as one batch, so that both are normalised by the same
moments:

    [Q_i(s, a), Q_i(s', a')] = Q_i([s, s'], [a, a']),  a' ~ pi(s')
    y    = R + gamma^n (min_i Q_i(s', a') - alpha log pi(a'|s')),    no gradient flows into y
    L_Q  = w sum_i (Q_i(s, a) - y)^2 / 2
    L_pi, L_alpha: SAC's (``sac.py``), in every ``delay``-th update

The norms (``nets/renorm.py``) go by a batch's own moments in two places: in the critics for L_Q,
and in the actor for L_pi. Everywhere else (acting, a', the critics in the actor's loss) they go by
the running statistics, which are buffers of the network. A batch enters them when its update is
done (``absorb``). Actions are a Box.

The critics' 1,024 units a layer are sb3-contrib's; the authors take 2,048.

Deviations: the temperature's loss is at s', with Adam's betas of the others, as everything here; a
batch enters the running statistics at the end of its update, there before the actor's turn; the
deviations of ``sac.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch

from equipoise import tree
from equipoise.algorithms._off_policy import Shape, critic_loss, standard_normal
from equipoise.algorithms.sac import SAC, SoftActorCritic
from equipoise.facts import KEPT, Help
from equipoise.nets.actor import Bounds
from equipoise.nets.renorm import RenormMLP, RenormTwins, by_batch, norms
from equipoise.nets.twin import TwinCritic
from equipoise.types import (
    Batch,
    EnvSpec,
    LossOutput,
    NonNegativeInt,
    Optimizer,
    Pool,
    PositiveInt,
    Trajectory,
    Tree,
)


@dataclass(frozen=True, kw_only=True)
class CrossQ(SAC):
    has_target: ClassVar[bool] = False
    default_optimizer: ClassVar[Optimizer] = replace(
        SAC.default_optimizer, learning_rate=1e-3, betas=(0.5, 0.999)
    )

    hidden: Annotated[tuple[PositiveInt, ...], Help("Sizes of the actor's hidden layers"), KEPT] = (
        256,
        256,
    )
    critic_hidden: Annotated[
        tuple[PositiveInt, ...], Help("Sizes of the critics' hidden layers"), KEPT
    ] = (1024, 1024)
    delay: Annotated[PositiveInt, Help("Critic updates per update of actor and temperature")] = 3
    target_every: Annotated[
        NonNegativeInt, Help("Updates between target copies; always 0 (no target)")
    ] = 0

    def network(self, spec: EnvSpec) -> SoftActorCritic:
        bounds = Bounds(spec.action, "crossq")
        actor = self.gaussian(spec, bounds.size, body=RenormMLP)
        wide: Shape = {**self.shape, "hidden": self.critic_hidden}
        return self.joined(
            actor, TwinCritic(spec, action_size=bounds.size, twins=RenormTwins, **wide), bounds
        )

    def due(self, group: str, version: int) -> bool:
        return group == "critic" or (
            version >= self.value_warmup and (version + 1) % self.delay == 0
        )

    def targets(
        self,
        net: SoftActorCritic,
        target_net: object,
        data: Trajectory,
        *,
        rng: torch.Generator,
        pool: Pool,
    ) -> Tree:
        """{"action": a' [B, size], "entropy": -log pi(a'|s'), "spare": how far that is above its
        target}, [B] each.
        """
        assert net.bounds is not None
        reward, _, obs = self.ahead(data)
        action, logp = net.actor.sample(obs, standard_normal((len(reward), net.bounds.size), rng))
        aim = -float(net.bounds.size) if self.target_entropy is None else self.target_entropy
        return {"action": action, "entropy": -logp, "spare": -logp - aim}

    def critic_loss(self, net: SoftActorCritic, obs: Tree, batch: Batch) -> LossOutput:
        assert net.bounds is not None
        data, targets = batch.data, batch.targets
        reward, discount, following = self.ahead(data)
        both = tree.map(lambda one, other: torch.cat([one, other]), obs, following)
        action = torch.cat([net.bounds.from_env(data.action[0]), targets["action"]])
        with by_batch(net.critic):
            q, q_following = net.critic(both, action).chunk(2, 1)
        value = (
            q_following.detach().amin(0) + net.log_temperature.detach().exp() * targets["entropy"]
        )
        return critic_loss(batch.weight, q, reward + discount * value)

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
        with by_batch(net.actor):  # which acts for L_pi alone: a' is there already
            return super().loss(net, target_net, batch, group=group, step=step, rng=rng)

    def absorb(self, net: SoftActorCritic, data: Trajectory, *, pool: Pool) -> None:
        for norm in norms(net):
            norm.absorb(pool)
