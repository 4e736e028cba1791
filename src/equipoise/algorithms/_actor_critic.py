"""The base of the actor-critics: network, sampling, statistics of observations, sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from equipoise import tree
from equipoise.algorithms._memory import Remembers
from equipoise.facts import KEPT, Help, Read
from equipoise.nets import ActorCritic, ActorCriticOutput
from equipoise.nets.heads import HeadOptions
from equipoise.nets.vision import Torso
from equipoise.types import (
    Algorithm,
    EnvSpec,
    LossOutput,
    NonNegativeInt,
    Pool,
    PositiveFloat,
    PositiveInt,
    Trajectory,
    Tree,
    UnitInterval,
)


class PolicyAlgorithm(Algorithm):
    """How every algorithm with an ``ActorCritic`` acts best, and normalises observations."""

    stochastic: ClassVar[bool] = True

    def propensity(
        self,
        net: ActorCritic,
        obs: Tree,
        first: Tensor,
        state: Tree,
        action: Tree,
        *,
        explore: Tree,
    ) -> Tensor | None:
        return net.policy(obs, first, state)[0].logp(action)

    def best(self, net: ActorCritic, obs: Tree, first: Tensor, state: Tree) -> tuple[Tree, Tree]:
        policy, state = net.policy(obs, first, state)
        return policy.mode(), state

    def absorb(self, net: ActorCritic, data: Trajectory, *, pool: Pool) -> None:
        net.absorb(tree.index(data.obs, slice(data.shape[0])), data.mask, pool)


@dataclass(frozen=True, kw_only=True)
class ActorCriticAlgorithm(PolicyAlgorithm, Remembers):
    hidden: Annotated[tuple[PositiveInt, ...], Help("Sizes of the hidden layers"), KEPT] = (64, 64)
    activation: Annotated[Literal["tanh", "relu"], Help("Activation of the hidden layers")] = "tanh"
    shared: Annotated[
        bool,
        Help(
            "One torso (feature extractor) for policy and value",
            "Networks for images always share it.",
        ),
        KEPT,
    ] = False
    torso: Torso = "auto"
    squash: Annotated[
        bool,
        Help(
            "Squash Box actions with tanh instead of clipping them",
            "The tanh maps them into their bounds.",
        ),
    ] = False
    log_std: Annotated[
        float,
        Help(
            "Initial log standard deviation of Box actions",
            "With `sde_every` it is that of the noise weights.",
        ),
    ] = 0.0
    sde_every: Annotated[
        NonNegativeInt,
        Help(
            "Env steps between new gSDE noise; 0 turns gSDE off",
            "For Box actions: the noise is one function of the state for this many "
            "steps of an env.",
        ),
        KEPT,
    ] = 0
    gamma: Annotated[UnitInterval, Help("Discount factor")] = 0.99
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

    @property
    def values(self) -> int:
        """Outputs of the value."""
        return 1

    def network(self, spec: EnvSpec) -> ActorCritic:
        return ActorCritic(
            spec,
            hidden=self.hidden,
            activation=self.activation,
            shared=self.shared,
            torso=self.torso,
            head=HeadOptions(
                squash=self.squash,
                log_std=self.log_std,
                by_state=self.sde_every > 0,
                values=self.values,
            ),
            clip_obs=self.clip_obs if self.normalize_obs else None,
            core=self.memory,
        )

    def absorb(self, net: ActorCritic, data: Trajectory, *, pool: Pool) -> None:
        if self.normalize_obs:  # a user's network need not have statistics
            super().absorb(net, data, pool=pool)

    def held_noise(self, net: ActorCritic) -> tuple[int, int]:
        if not self.sde_every:
            return 0, 1
        assert net.log_std is not None
        return net.log_std.numel(), self.sde_every

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
        action, logp = policy.sample_and_logp(noise)
        return action, {"logp": logp}, state


def unrolled(net: ActorCritic, data: Trajectory) -> ActorCriticOutput:
    """The outputs [T, B] for the rows of ``data``, without the last row, which only bootstraps."""
    rows = data.reward.shape[0]
    return net.unroll(tree.index(data.obs, slice(rows)), data.first[:rows], data.state)[0]


def clipped_loss(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """-min(r A, clip(r) A) [T, B] (Schulman et al. 2017, arXiv:1707.06347, Eq. 7)."""
    return torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1.0 - clip, 1.0 + clip))


def standardized(advantage: Tensor, mask: Tensor, pool: Pool) -> Tensor:
    """[T, B] with mean 0 and deviation 1 over the real rows of a batch; as it came if there is none
    (all aborted).

    The moments of the parts of several learners are added up in float64 (Chan, Golub and LeVeque
    1979, Eq. 2.1); if there is one part they are its own, to the bit.
    """
    real = advantage[mask]
    rows = len(real)
    mean, std = (
        (real.mean(), real.std(correction=0))
        if rows
        else (advantage.new_zeros(()), advantage.new_zeros(()))
    )
    here, spread = mean.double(), std.double()
    count, total = pool.sum(torch.stack([torch.full_like(here, rows), rows * here]))
    if not count:
        return advantage
    everywhere = total / count
    variance: Tensor = pool.sum(rows * (spread.square() + (here - everywhere).square())) / count
    centred: Tensor = advantage - everywhere.to(advantage.dtype)
    return centred / (variance.sqrt().to(advantage.dtype) + 1e-8)


def over_real_rows(mask: Tensor, terms: Tensor, **shown: Tensor) -> LossOutput:
    """The loss: the sum of ``terms`` [T, B] over real rows; metrics: means of ``shown`` [T, B]."""
    count = mask.sum()
    with torch.no_grad():
        sums = (torch.stack(list(shown.values())) * mask).sum((1, 2))
    return LossOutput(
        loss=(terms * mask).sum(),
        count=count,
        metrics={name: (total, count) for name, total in zip(shown, sums, strict=True)},
    )
