"""The intrinsic curiosity module: a bonus where a model does not foresee an action's outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from equipoise.facts import KEPT, Help, PositiveInt, Rate, Read, UnitInterval
from equipoise.nets.torso import MLP, linear
from equipoise.rewards.features import Features
from equipoise.rewards.observed import reached
from equipoise.rewards.term import RewardTerm
from equipoise.types import EnvSpec, LossOutput, Optimizer, Pool, Trajectory, Tree


class Models(nn.Module):
    """Features, and a model that predicts them one step ahead."""

    def __init__(self, spec: EnvSpec, encoder: str, hidden: tuple[int, ...], features: int) -> None:
        super().__init__()
        self.features, self._encoder = Features(spec, hidden, features), encoder
        size = self.features.size if encoder == "none" else features
        self.forward_model = MLP(size + self.features.actions, hidden, "relu")
        self.last = linear(self.forward_model.size_out, size, 1.0)

    def encoded(self, rows: Tensor) -> Tensor:
        """Return the features [T + 1, B, F] of whitened observations."""
        if self._encoder == "none":
            return rows
        with torch.set_grad_enabled(torch.is_grad_enabled() and self._encoder == "inverse"):
            found: Tensor = self.features.encoder(rows)
        return found

    def errors(self, features: Tensor, action: Tree) -> Tensor:
        """Return [T, B], half the squared distance of the predicted features to the next ones."""
        given = torch.cat([features[:-1], self.features.action_rows(action)], -1)
        predicted = self.last(self.forward_model(given.flatten(0, 1))).view(features[1:].shape)
        found: Tensor = (predicted - features[1:]).square().sum(-1) / 2
        return found


@dataclass(kw_only=True, eq=False)
class ICM(RewardTerm):
    """The error of a model that predicts the features of the next observation from the present ones
    and the action, half a squared distance (Pathak et al. 2017, arXiv:1705.05363).

    The features are learned by telling the action between two observations, so what no action
    changes, such as noise, has no part in them. The sizes, ``beta`` and the learning rate are the
    paper's. The paper's eta is the weight in the sum.
    """

    name: ClassVar[str] = "icm"

    encoder: Annotated[
        Literal["inverse", "random", "none"],
        Help(
            "Features in which the error is taken",
            "inverse: learned with the inverse model. random: of a fixed random network. none: the "
            "whitened observation.",
        ),
        KEPT,
    ] = "inverse"
    features: Annotated[
        PositiveInt,
        Help("Number of features"),
        KEPT,
        Read("encoder", "inverse", "random", why="the observation itself is predicted"),
    ] = 288
    hidden: Annotated[
        tuple[PositiveInt, ...],
        Help("Sizes of the hidden layers of the encoder and of both models"),
        KEPT,
    ] = (256,)
    beta: Annotated[
        UnitInterval,
        Help("Weight of the forward model's loss", "The inverse model's is 1 - beta."),
        Read("encoder", "inverse", why="the features are not learned"),
    ] = 0.2
    learning_rate: Annotated[Rate, Help("Learning rate of all models")] = 1e-3
    steps: Annotated[PositiveInt, Help("Steps of the models after each batch")] = 1

    def build(self, spec: EnvSpec, seed: int) -> None:
        self.net: Models = Models(spec, self.encoder, self.hidden, self.features)
        self.optimizer = Optimizer(learning_rate=self.learning_rate, schedule="constant")
        self._rows = torch.empty(0)  # of the batch at hand: whitened observations [T + 1, B, F]

    def rewards(self, data: Trajectory) -> Tensor:
        self._rows = self.net.features.rows(data.obs)
        return self.net.errors(self.net.encoded(self._rows), data.action) * reached(data)

    def loss(self, data: Trajectory) -> LossOutput:
        features, real = self.net.encoded(self._rows), reached(data)
        loss = self.net.errors(features, data.action)
        if self.encoder == "inverse":
            told = self.net.features.inverse_loss(features, data.action)
            loss = self.beta * loss + (1 - self.beta) * told
        return LossOutput(loss=(loss * real).sum(), count=real.sum() + 1e-9)  # above 0 in any case

    def absorb(self, data: Trajectory, pool: Pool) -> None:
        self.net.features.absorb(data.obs, reached(data), pool)
        self._rows = torch.empty(0)
