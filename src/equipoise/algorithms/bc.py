"""Behaviour cloning (Pomerleau 1988, ALVINN): the policy under which the recorded actions are
likeliest.

    L = -w log pi(a|s) - entropy H(pi(s))

over the real rows of every item, whichever policy acted: states and actions are all it reads, so it
learns from a data set without an env. The policy is that of the actor-critics, so actions may be of
any space, masks hold, and a Box has a Gaussian whose deviation does not depend on the state (with
equal deviations this is regression on the recorded actions).

Deviations: none to speak of; a recorded action outside of a squashed Box counts as the bound
itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from equipoise import tree
from equipoise.algorithms._actor_critic import PolicyAlgorithm
from equipoise.facts import KEPT, Help, Read
from equipoise.nets import ActorCritic
from equipoise.nets.heads import HeadOptions
from equipoise.nets.vision import Torso
from equipoise.types import (
    Batch,
    EnvSpec,
    LossOutput,
    NonNegativeFloat,
    Optimizer,
    PositiveFloat,
    PositiveInt,
    Range,
    Tree,
)


@dataclass(frozen=True, kw_only=True)
class BC(PolicyAlgorithm):
    needs_replay: ClassVar[bool] = True
    needs_dataset: ClassVar[bool] = True
    reads_rewards: ClassVar[bool] = False
    default_optimizer: ClassVar[Optimizer] = Optimizer(schedule="constant", epsilon=1e-8)

    hidden: Annotated[tuple[PositiveInt, ...], Help("Sizes of the hidden layers"), KEPT] = (
        256,
        256,
    )
    activation: Annotated[Literal["tanh", "relu"], Help("Activation of the hidden layers")] = "relu"
    torso: Torso = "auto"
    squash: Annotated[
        bool,
        Help(
            "Squash Box actions with tanh instead of clipping them",
            "The tanh maps them into their bounds.",
        ),
    ] = False
    log_std: Annotated[float, Help("Initial log standard deviation of Box actions")] = 0.0
    normalize_obs: Annotated[
        bool,
        Help(
            "Normalise observations by their running mean and deviation",
            "It applies to each number of a Box.",
        ),
        KEPT,
    ] = False
    clip_obs: Annotated[
        PositiveFloat,
        Help("Clip limit of normalised observations, in deviations"),
        Read("normalize_obs", why="observations stay as they are"),
    ] = 10.0
    entropy: Annotated[NonNegativeFloat, Help("Entropy coefficient")] = 0.0
    epochs: Annotated[
        int,
        Range(1, 1),
        Help(
            "Passes over a batch; always 1 here",
            "`replay.updates` sets how often rows are learned from.",
        ),
    ] = 1
    minibatches: Annotated[int, Range(1, 1), Help("Minibatches per pass; always 1 here")] = 1

    @property
    def item_rows(self) -> int | None:
        return 1

    def network(self, spec: EnvSpec) -> ActorCritic:
        return ActorCritic(
            spec,
            hidden=self.hidden,
            activation=self.activation,
            torso=self.torso,
            head=HeadOptions(squash=self.squash, log_std=self.log_std),
            clip_obs=self.clip_obs if self.normalize_obs else None,
            shared=True,
        )

    def act(
        self,
        net: ActorCritic,
        obs: Tree,
        first: Tensor,
        state: Tree,
        *,
        explore: Tree,
        noise: Tensor,
    ) -> tuple[Tree, Tree, Tree]:
        policy, state = net.policy(obs, first, state)
        return policy.sample(noise), {}, state

    def loss(
        self,
        net: ActorCritic,
        target_net: object,
        batch: Batch,
        *,
        group: str,
        step: float,
        rng: torch.Generator,
    ) -> LossOutput | None:
        """L above, summed over real rows. Priority: -log pi of an item's first action."""
        data, rows = batch.data, batch.data.shape[0]
        policy = net.unroll(tree.index(data.obs, slice(rows)), data.first[:rows], {})[0].policy
        surprise, entropy = -policy.logp(data.action), policy.entropy()
        terms = (surprise - self.entropy * entropy) * data.mask
        count = data.mask.sum()
        shown = {"surprise": surprise, "policy_entropy": entropy}
        metrics = {name: ((x.detach() * data.mask).sum(), count) for name, x in shown.items()}
        return LossOutput(
            loss=(terms * batch.weight).sum(),
            count=count,
            metrics=metrics,
            priority=surprise[0].detach(),
        )
