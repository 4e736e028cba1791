"""What never acts learns with the learner's half of an algorithm alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn

from equipoise import tree
from equipoise.learners.learner import Learner
from equipoise.types import Algorithm, Batch, Learns, LossOutput
from tests.algorithms import items

W = torch.tensor([0.5, -1.0, 2.0])


class Line(nn.Linear):
    def initial_state(self, batch: int) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, kw_only=True)
class Regression(Learns):
    """Least squares of recorded rewards: no env, no action, no policy."""

    def network(self, spec: Any) -> nn.Module:
        return Line(3, 1)

    def loss(
        self, net: Any, target_net: Any, batch: Batch, *, group: str, step: float, rng: Any
    ) -> LossOutput:
        data, rows = batch.data, batch.data.shape[0]
        error = (
            net(tree.index(data.obs, slice(rows))).squeeze(-1) - data.reward
        ).square() * data.mask
        count = data.mask.sum()
        return LossOutput(
            loss=error.sum(), count=count, metrics={"error": (error.detach().sum(), count)}
        )


def test_the_learners_half_learns_from_recorded_rows() -> None:
    torch.manual_seed(0)
    algorithm, data = Regression(minibatches=2, epochs=2), items.drawn(items.DISCRETE, 16, 8, 0)
    data = replace(data, reward=torch.where(data.mask, data.obs[:-1] @ W + 0.25, 0.0))
    optimizer = replace(algorithm.default_optimizer, learning_rate=0.03)
    learner = Learner(
        algorithm,
        algorithm.network(None),
        optimizer=optimizer,
        schedule_updates=200,
        seed=0,
        batch=8,
    )
    for _ in range(200):
        learner.step(items.batch(data))
    torch.testing.assert_close(learner.net.weight.detach()[0], W, atol=1e-3, rtol=0)
    assert learner.version == 200 and not hasattr(algorithm, "act")


def test_an_algorithm_without_the_actors_half_is_none() -> None:
    class Half(Regression, Algorithm): ...

    with pytest.raises(TypeError, match=r"abstract methods '?act'?, '?best'?"):
        Half()  # type: ignore[abstract]
