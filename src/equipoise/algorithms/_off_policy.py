"""The shared base of algorithms with a replay: windows, n-step returns, weights and priorities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple, TypedDict

import torch
from torch import Tensor

from equipoise import tree
from equipoise.facts import KEPT, Help, Read
from equipoise.nets.q import QNetwork, any_of, greedy
from equipoise.nets.vision import Torso
from equipoise.types import (
    Algorithm,
    Array,
    LossOutput,
    NonNegativeInt,
    Optimizer,
    PositiveInt,
    Range,
    Trajectory,
    Tree,
    UnitInterval,
)


class Shape(TypedDict):
    """The parts that the networks of one algorithm share."""

    hidden: tuple[int, ...]
    activation: str
    torso: str


@dataclass(frozen=True, kw_only=True)
class OffPolicyAlgorithm(Algorithm):
    """Items are windows of ``n_step`` rows, whose first row is learned from; targets are [B]."""

    has_target: ClassVar[bool] = True
    needs_replay: ClassVar[bool] = True
    default_optimizer: ClassVar[Optimizer] = Optimizer(
        schedule="constant", epsilon=1e-8, max_grad_norm=0.0
    )

    hidden: Annotated[tuple[PositiveInt, ...], Help("Sizes of the hidden layers"), KEPT] = (
        256,
        256,
    )
    activation: Annotated[Literal["tanh", "relu"], Help("Activation of the hidden layers")] = "relu"
    torso: Torso = "auto"
    encoder_rows: Annotated[
        NonNegativeInt,
        Help(
            "Rows that train only the encoder; 0 skips its training",
            "They are the first rows of the run; the replay stores the later rows.",
        ),
        Read("torso", "vae", why="there is no encoder"),
        KEPT,
    ] = 20_000
    gamma: Annotated[UnitInterval, Help("Discount factor")] = 0.99
    n_step: Annotated[
        PositiveInt,
        Help("Steps of the n-step return", "The return ends early if the episode does."),
        KEPT,
    ] = 1
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
        return self.n_step

    @property
    def warmup_rows(self) -> int:
        return self.encoder_rows if self.torso == "vae" else 0

    @property
    def shape(self) -> Shape:
        return {"hidden": self.hidden, "activation": self.activation, "torso": self.torso}

    def ahead(self, data: Trajectory) -> Ahead:
        """The n-step return of row 0 and where it ends."""
        return ahead(data, self.gamma, self.n_step)


class Ahead(NamedTuple):
    """The n-step returns of B items: ``reward + discount * V(obs)``."""

    reward: Tensor  # [B] discounted and summed
    discount: Tensor  # [B] gamma^k, 0 if the episode terminated
    obs: Tree  # [B, ...] k rows after the first


def ahead(data: Trajectory, gamma: float, n: int) -> Ahead:
    """Compute ``returns.nstep`` for row 0 alone: only one observation an item then needs a value.

        R = sum_{i<k} gamma^i r_i,   G = R + gamma^k V(obs_k),   k = min(n, rows until the episode or the window ends)

    obs_k of an episode that a clock cut is its true final observation, which stands at the seam; an
    episode that terminated has the discount 0. Row 0 is real.
    """  # noqa: E501
    reward = data.reward[:n]
    rows, items = reward.shape
    if rows == 1:
        return Ahead(reward[0], data.bootstrap[0] * gamma, tree.index(data.obs, 1))
    mask, bootstrap = data.mask[:n], data.bootstrap[:n]
    counts = mask.to(torch.int64)
    counts[1:] *= (mask & bootstrap)[:-1].cumprod(0)
    k, item = counts.sum(0), torch.arange(items, device=reward.device)
    gammas = torch.tensor(
        [gamma**i for i in range(rows + 1)], dtype=reward.dtype, device=reward.device
    )
    return Ahead(
        (reward * counts * gammas[:-1, None]).sum(0),
        gammas[k] * bootstrap[k - 1, item],
        tree.map(lambda leaf: leaf[k, item], data.obs),
    )


def weighed(
    weight: Tensor, terms: Tensor, *, priority: Tensor | None = None, **shown: Tensor
) -> LossOutput:
    """The loss: the sum of ``terms`` [B] times weights; metrics: means of ``shown`` [B]."""
    count = weight.new_full((), float(len(weight)))
    with torch.no_grad():
        sums = torch.stack([x.detach() for x in shown.values()]).sum(1)
    return LossOutput(
        loss=(weight * terms).sum(),
        count=count,
        priority=None if priority is None else priority.detach(),
        metrics={name: (total, count) for name, total in zip(shown, sums, strict=True)},
    )


def critic_loss(weight: Tensor, q: Tensor, target: Tensor) -> LossOutput:
    """Half the squared errors of all critics' q [members, B] to ``target`` [B], summed."""
    error = q - target
    terms, td_error = 0.5 * error.square().sum(0), error.abs().mean(0)
    return weighed(
        weight, terms, priority=td_error, critic_loss=terms, td_error=td_error, q=q.mean(0)
    )


def epsilon_greedy(
    net: QNetwork, q: Tensor, obs: Tree, epsilon: Tensor, noise: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """q [B, actions], epsilon [B] -> env action [B], with Q(s, a) and max_a Q(s, a)."""
    allowed = net.allowed(obs, net.actions)
    best = greedy(q, allowed)
    action = torch.where(noise[:, -1] < epsilon, any_of(noise[:, 0], net.actions, allowed), best)
    said = q.gather(1, torch.stack([action, best], 1))
    return action + net.start, {"q": said[:, 0], "value": said[:, 1]}


def epsilon_propensity(
    net: QNetwork, q: Tensor, obs: Tree, epsilon: Tensor, action: Tensor
) -> Tensor:
    """log(epsilon / n + (1 - epsilon) [action is the best]) [B], for n allowed actions."""
    allowed = net.allowed(obs, net.actions)
    at = action - net.start
    uniform = uniform_probability(q, allowed, at)
    likely: Tensor = epsilon * uniform + (1 - epsilon) * (at == greedy(q, allowed))
    return likely.log()


def uniform_probability(like: Tensor, allowed: Tensor | None, at: Tensor) -> Tensor:
    """[B], 1 / n for an action ``at`` [B] of the n that are allowed of [B, actions], else 0."""
    fine = torch.ones_like(like) if allowed is None else allowed.to(like.dtype)
    return fine.gather(1, at.unsqueeze(1)).squeeze(1) / fine.sum(1)


def ladder(stream: Array, streams: int, epsilon: float, alpha: float) -> Tensor:
    """[B] epsilon^(1 + alpha i / (N - 1)) of the streams i = ``stream`` [B] of N (Horgan et al.
    2018, arXiv:1803.00933).

    With one stream alone it is ``epsilon``.
    """
    power = 1.0 + alpha * torch.as_tensor(stream, dtype=torch.float64) / max(streams - 1, 1)
    return torch.pow(torch.tensor(epsilon, dtype=torch.float64), power).float()


def at_random(streams: Array, random_steps: int, step: int) -> Tree:
    """Return {"random": [B] bool}, True in the first ``random_steps`` env steps; {} if 0."""
    return {"random": torch.full((len(streams),), step < random_steps)} if random_steps else {}


def uniform_where(explore: Tree, action: Tensor, noise: Tensor) -> Tensor:
    """action [B, d] from -1 to 1, or uniform noise if ``explore`` asks for it."""
    if "random" not in explore:
        return action
    return torch.where(
        explore["random"].unsqueeze(-1), noise[..., : action.shape[-1]] * 2 - 1, action
    )


def standard_normal(like: tuple[int, ...], rng: torch.Generator) -> Tensor:
    return torch.randn(like, generator=rng, device=rng.device)
