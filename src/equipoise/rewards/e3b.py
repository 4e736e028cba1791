"""Elliptical episodic bonus: pays for features that are new in their episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from equipoise.facts import KEPT, Help, PositiveFloat, PositiveInt, Range, Rate, Read
from equipoise.nets.normalize import RunningNorm
from equipoise.rewards.features import Features
from equipoise.rewards.observed import reached
from equipoise.rewards.streams import check_size, in_order, of_all, turns, with_room
from equipoise.rewards.term import RewardTerm
from equipoise.schema import Array, Schema, like
from equipoise.types import EnvSpec, Learns, LossOutput, Optimizer, Pool, Trajectory, Tree


@dataclass(kw_only=True, eq=False)
class E3B(RewardTerm):
    """``f^T C^-1 f`` of the features f of the observation that an action led to, where C is the sum
    of ``g g^T`` over the features g of the episode's earlier observations, and of ``ridge`` times
    the identity (Henaff et al. 2022, arXiv:2210.05805, algorithm 1).

    The bonus is divided by its running deviation, as in the paper's code. The inverse of each
    stream's C is kept between batches, float64 [features, features]: an episode that goes on over
    an update has features of the encoder before it and after it.
    """

    name: ClassVar[str] = "e3b"

    encoder: Annotated[
        Literal["inverse", "random"],
        Help(
            "Features of an observation",
            "inverse: learned by telling the action between two observations. random: of a fixed "
            "random network.",
        ),
        KEPT,
    ] = "inverse"
    features: Annotated[
        int,
        Range(1, 1024),
        Help(
            "Number of features",
            "Each env takes 8 * features^2 bytes, also in checkpoints; all at most 256 MiB.",
        ),
        KEPT,
    ] = 64
    hidden: Annotated[tuple[PositiveInt, ...], Help("Sizes of the hidden layers"), KEPT] = (64,)
    ridge: Annotated[
        PositiveFloat,
        Help("Weight of the identity in the matrix", "Less makes first visits pay more."),
        KEPT,
    ] = 0.1
    learning_rate: Annotated[
        Rate,
        Help("Learning rate of the encoder"),
        Read("encoder", "inverse", why="the encoder does not learn"),
    ] = 1e-3
    steps: Annotated[
        PositiveInt,
        Help("Steps of the encoder after each batch"),
        Read("encoder", "inverse", why="the encoder does not learn"),
    ] = 1

    def follow(self, algorithm: Learns) -> None:
        in_order(algorithm, self.name)

    def build(self, spec: EnvSpec, seed: int) -> None:
        self.net: Features = Features(spec, self.hidden, self.features)
        self.optimizer = Optimizer(learning_rate=self.learning_rate, schedule="constant")
        self._scale = RunningNorm(1, clip=float("inf"))
        self._new = torch.eye(self.features, dtype=torch.float64) / self.ridge
        self._inverse = self._new.new_zeros(0, *self._new.shape)  # [streams, features, features]
        # of the batch at hand: whitened observations, bonuses [T, B], matrices after it
        self._rows = self._bonus = self._after = torch.empty(0)

    def to(self, device: torch.device) -> None:
        self._scale.to(device)
        self._new, self._inverse = self._new.to(device), self._inverse.to(device)

    def rewards(self, data: Trajectory) -> Tensor:
        self._rows, stream = self.net.rows(data.obs), data.context["stream"]
        features = self.net.encoder(self._rows).double()
        begins, real = data.first[:-1], reached(data)
        bonus = features.new_zeros(data.shape)
        check_size(streams := int(stream.max()) + 1, self._new, "reward.e3b.features")
        self._after = with_room(self._inverse, streams, self._new)
        for windows in turns(data):
            ids = stream[windows]
            bonus[:, windows], self._after[ids] = elliptical(
                features[:, windows],
                begins[:, windows],
                real[:, windows],
                self._after[ids],
                self._new,
            )
        self._bonus = bonus.float()
        return self._scale.scale(self._bonus)

    def loss(self, data: Trajectory) -> LossOutput | None:
        if self.encoder == "random":
            return None
        real = reached(data)
        features = self.net.encoder(self._rows)
        told = self.net.inverse_loss(features[:-1], features[1:], data.action)
        return LossOutput(loss=(told * real).sum(), count=real.sum() + 1e-9)  # above 0 in any case

    def absorb(self, data: Trajectory, pool: Pool) -> None:
        self._scale.absorb(self._bonus.unsqueeze(-1), reached(data), pool)
        self._inverse = of_all(self._after, data.context["stream"], self._new, pool)
        self.net.absorb(data.obs, reached(data), pool)
        self._rows = self._bonus = self._after = torch.empty(0)

    def state(self) -> Tree:
        return {"inverse": self._inverse, "scale": dict(self._scale.named_buffers())}

    def schema(self) -> Schema:
        shape = (None, self.features, self.features)
        return {
            "inverse": Array(shape, "float64", tensor=True, finite=True),
            "scale": like(dict(self._scale.named_buffers()), finite=True),
        }

    def load(self, state: Tree) -> None:
        for name, buffer in self._scale.named_buffers():
            buffer.copy_(state["scale"][name])
        self._inverse = state["inverse"].to(self._new.device, copy=True)


def elliptical(
    features: Tensor, begins: Tensor, real: Tensor, inverse: Tensor, new: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the bonuses [T, B] of features [T + 1, B, F] along windows, and the inverse matrices
    [B, F, F] after them.

    ``begins`` [T, B]: the row's observation begins an episode, whose matrix is ``new`` and that
    observation. ``real`` [T, B]: the row's action led to the next observation.
    """
    bonus = features.new_zeros(real.shape)
    after, starts = features[1:] * real.unsqueeze(-1), begins.any(1).tolist()
    for t, some in enumerate(starts):
        if some:
            now = begins[t].view(-1, 1, 1)
            inverse = torch.where(now, added(new, features[t])[1], inverse)
        bonus[t], inverse = added(inverse, after[t])
    return bonus, inverse


def added(inverse: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
    """Return [B] ``f^T A f`` of the inverse matrices A [B, F, F] and features f [B, F], and A after
    ``f f^T`` was added to the matrix (Sherman and Morrison 1950).
    """
    moved = inverse @ feature.unsqueeze(-1)  # [B, F, 1]
    bonus = (feature.unsqueeze(-1) * moved).sum((-2, -1))
    return bonus, inverse - moved * moved.mT / (1 + bonus).view(-1, 1, 1)
