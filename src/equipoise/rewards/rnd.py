"""Random network distillation: a bonus where a network does not yet predict another one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from equipoise.facts import (
    KEPT,
    Fraction,
    Help,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    Rate,
    Read,
    UnitInterval,
)
from equipoise.nets.normalize import RunningNorm
from equipoise.rewards.observed import Observed, reached, some_rows
from equipoise.rewards.return_norm import ReturnNorm
from equipoise.rewards.term import Refused, RewardTerm
from equipoise.schema import Schema, count, like
from equipoise.types import (
    EnvSpec,
    Learns,
    LossOutput,
    Optimizer,
    Pool,
    Trajectory,
    Tree,
)

CLIP = 5.0  # of whitened observations, in deviations (section 2.4)
UNCLIPPED = float("inf")
WIDE = 1024  # numbers of an observation from which its statistics take a part of the rows


class Distilled(nn.Module):
    """A fixed network and the one that learns to predict it, on rows of observations [..., F]."""

    def __init__(self, observed: Observed, hidden: tuple[int, ...], features: int) -> None:
        super().__init__()
        self.target = observed.network(hidden, features).requires_grad_(False)
        self.predictor = observed.network((*hidden, *hidden[-1:]), features)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the mean squared error of the prediction [...]."""
        error: Tensor = (self.predictor(rows) - self.target(rows)).square().mean(-1)
        return error


@dataclass(kw_only=True, eq=False)
class RND(RewardTerm):
    """The error of a network that learns to predict a fixed random one, on the observation that an
    action led to (Burda et al. 2018, arXiv:1810.12894).

    Observations are whitened by running statistics and clipped to five deviations; the error is
    divided by the running deviation of its discounted return, which runs through the ends of
    episodes (section 2.4). A learner cannot step the env, so the statistics begin with the first
    ``warmup`` rows that actors send, which have no bonus, in place of rows of a random policy; nor
    is there a bonus before the predictor's first step.
    """

    name: ClassVar[str] = "rnd"

    features: Annotated[PositiveInt, Help("Outputs of the two networks"), KEPT] = 64
    hidden: Annotated[
        tuple[PositiveInt, ...],
        Help("Sizes of the hidden layers", "The predictor has one more, of the last size."),
        KEPT,
    ] = (64, 64)
    learning_rate: Annotated[Rate, Help("Learning rate of the predictor")] = 1e-3
    steps: Annotated[
        PositiveInt,
        Help("Steps of the predictor after each batch", "More steps end the bonus sooner."),
    ] = 4
    share: Annotated[
        Fraction,
        Help(
            "Share of the rows of a batch in each of these steps", "The rows are drawn at random."
        ),
    ] = 0.25
    warmup: Annotated[
        NonNegativeInt, Help("First rows, for the statistics of observations alone")
    ] = 1_000
    discount: Annotated[
        UnitInterval,
        Help(
            "Discount of the return whose deviation scales the bonus",
            "With a replay, whose rows come in no order, it is 0.",
        ),
        Read("modulator", 0.0, why="a modulator is scaled by the deviation of the error itself"),
    ] = 0.99
    modulator: Annotated[
        NonNegativeFloat,
        Help(
            "Largest factor in a product; 0 returns the error itself",
            "The factor is 1 + the error in deviations from its mean, at least 1 (Badia et al. "
            "2020, arXiv:2002.06038, section 2, where the largest is 5).",
        ),
        KEPT,
    ] = 0.0

    def follow(self, algorithm: Learns) -> None:
        if 0 < self.modulator < 1:
            raise Refused(
                f"reward.rnd.modulator: must be 0 or at least 1, got {self.modulator:g}; try 5"
            )
        alone = algorithm.needs_replay or self.modulator > 0
        self._discount = 0.0 if alone else self.discount

    def build(self, spec: EnvSpec, seed: int) -> None:
        self._observed, self._seed = Observed(spec), seed
        self.net: Distilled = Distilled(self._observed, self.hidden, self.features)
        self.optimizer = Optimizer(learning_rate=self.learning_rate, schedule="constant")
        self._norm = RunningNorm(self._observed.size, clip=CLIP)
        self._scale = ReturnNorm(clip=UNCLIPPED, episodic=False)
        self._taken, self._is_warm = 0, False  # taken: steps of the predictor
        # of the batch at hand: whitened observations [T, B, F] that were reached, errors [T, B]
        self._rows, self._errors = torch.empty(0), torch.empty(0)

    def to(self, device: torch.device) -> None:
        self._norm.to(device)
        self._scale.to(device)

    def rewards(self, data: Trajectory) -> Tensor:
        none = torch.full_like(data.reward, self.modulator > 0)  # 1 is no modulation
        if not self._warm():
            return none
        self._rows = self._norm(self._observed.rows(data.obs)[1:])
        self._errors = self.net(self._rows) * reached(data)
        if not self._taken:
            return none
        if self.modulator:
            return (1 + self._scale.centred(self._errors)).clamp(1, self.modulator)
        return self._scale.scale(self._errors)

    def loss(self, data: Trajectory) -> LossOutput | None:
        if not self._warm():
            return None
        self._taken += 1
        chosen = some_rows(data, self.share, self._seed + self._taken) & reached(data)
        return LossOutput(
            loss=self.net(self._rows[chosen]).sum(),
            count=chosen.sum() + 1e-9,  # above 0 also if no row is chosen
        )

    def absorb(self, data: Trajectory, pool: Pool) -> None:
        if self._warm():
            self._scale.absorb(replace(data, reward=self._errors), self._discount, pool)
            self._rows = self._errors = torch.empty(0)
        every = min(-(-self._observed.size // WIDE), data.shape[0])
        self._norm.absorb(self._observed.rows(data.obs)[1:][::every], reached(data)[::every], pool)

    def state(self) -> Tree:
        norm = dict(self._norm.named_buffers())
        return {"observations": norm, "scale": self._scale.state(), "steps": self._taken}

    def schema(self) -> Schema:
        norm = like(dict(self._norm.named_buffers()), finite=True)
        return {"observations": norm, "scale": self._scale.schema(), "steps": count()}

    def load(self, state: Tree) -> None:
        for name, buffer in self._norm.named_buffers():
            buffer.copy_(state["observations"][name])
        self._scale.load(state["scale"])
        self._taken, self._is_warm = state["steps"], False

    def _warm(self) -> bool:
        """Are there statistics of observations?"""
        if not self._is_warm:  # else a look at a device would wait
            self._is_warm = int(self._norm.count) >= max(self.warmup, 1)
        return self._is_warm
