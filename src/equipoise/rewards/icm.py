"""The intrinsic curiosity module: a bonus for outcomes of actions that a model does not predict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from equipoise import tree
from equipoise.facts import KEPT, Fraction, Help, PositiveInt, Rate, Read, UnitInterval
from equipoise.nets.torso import MLP, linear
from equipoise.rewards.features import Features
from equipoise.rewards.observed import reached, some_rows
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
        """Return the features [..., F] of whitened observations."""
        if self._encoder == "none":
            return rows
        with torch.set_grad_enabled(torch.is_grad_enabled() and self._encoder == "inverse"):
            found: Tensor = self.features.encoder(rows)
        return found

    def errors(self, before: Tensor, after: Tensor, action: Tree) -> Tensor:
        """Return half the squared distance [T, B] between the features ``after`` [T, B, F] and
        those predicted from ``before`` and the action.
        """
        given = torch.cat([before, self.features.action_rows(action)], -1)
        predicted = self.last(self.forward_model(given.flatten(0, 1))).view(after.shape)
        found: Tensor = (predicted - after).square().sum(-1) / 2
        return found


@dataclass(kw_only=True, eq=False)
class ICM(RewardTerm):
    """The error of a model that predicts the features of the next observation from the present ones
    and the action, half a squared distance (Pathak et al. 2017, arXiv:1705.05363).

    The features are learned by predicting the action between two observations. Noise, which no
    action changes, fades from them: it does not help this prediction, and it raises the forward
    model's loss, which also moves the features. The sizes and the learning rate are the paper's;
    its ``beta`` of 0.2 leaves more noise in the features. The paper's eta is the weight in the sum.
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
        Help(
            "Weight of the forward model's loss",
            "The inverse model's is 1 - beta. More leaves less noise in the features.",
        ),
        Read("encoder", "inverse", why="the features are not learned"),
    ] = 0.5
    learning_rate: Annotated[Rate, Help("Learning rate of all models")] = 1e-3
    steps: Annotated[
        PositiveInt,
        Help(
            "Steps of the models after each batch",
            "More steps end the bonus sooner, also that of noise.",
        ),
    ] = 8
    share: Annotated[
        Fraction,
        Help(
            "Share of the rows of a batch in each of these steps", "The rows are drawn at random."
        ),
    ] = 0.25

    def build(self, spec: EnvSpec, seed: int) -> None:
        self.net: Models = Models(spec, self.encoder, self.hidden, self.features)
        self.optimizer = Optimizer(learning_rate=self.learning_rate, schedule="constant")
        self._seed = seed
        # of the batch at hand: whitened observations [T + 1, B, F], steps of the models
        self._rows, self._taken = torch.empty(0), 0

    def rewards(self, data: Trajectory) -> Tensor:
        self._rows = self.net.features.rows(data.obs)
        features = self.net.encoded(self._rows)
        return self.net.errors(features[:-1], features[1:], data.action) * reached(data)

    def loss(self, data: Trajectory) -> LossOutput:
        seed = self._seed + self.version * self.steps + self._taken
        self._taken += 1
        chosen = some_rows(data, self.share, seed) & reached(data)
        before, after = (
            self.net.encoded(rows[chosen].unsqueeze(1))
            for rows in (self._rows[:-1], self._rows[1:])
        )
        action = tree.map(lambda leaf: leaf[chosen].unsqueeze(1), data.action)  # [rows, 1, ...]
        loss = self.net.errors(before, after, action)
        if self.encoder == "inverse":
            inverse_loss = self.net.features.inverse_loss(before, after, action)
            loss = self.beta * loss + (1 - self.beta) * inverse_loss
        # above 0 also if no row is chosen
        return LossOutput(loss=loss.sum(), count=chosen.sum() + 1e-9)

    def absorb(self, data: Trajectory, pool: Pool) -> None:
        self.net.features.absorb(data.obs, reached(data), pool)
        self._rows, self._taken = torch.empty(0), 0
