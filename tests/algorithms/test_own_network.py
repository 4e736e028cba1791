"""A network of the user's own needs the three methods of ``Network`` and no more."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.algorithms.a3c import A3C
from equipoise.algorithms.appo import APPO
from equipoise.algorithms.impala import IMPALA
from equipoise.algorithms.ppo import PPO
from equipoise.learners.learner import Learner
from tests.algorithms.items import DISCRETE, network
from tests.rewards.test_terms import batches

pytestmark = pytest.mark.usefixtures("one_thread")


class Own(nn.Module):
    """Only what a Network has to have, around one of ours."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def initial_state(self, *given: Any) -> Any:
        return self.inner.initial_state(*given)  # type: ignore[operator]

    def step(self, *given: Any, **more: Any) -> Any:
        return self.inner.step(*given, **more)  # type: ignore[operator]

    def unroll(self, *given: Any) -> Any:
        return self.inner.unroll(*given)  # type: ignore[operator]


@pytest.mark.parametrize("cls", [PPO, IMPALA, APPO, A3C])
def test_a_network_without_statistics_learns(cls: Any) -> None:
    algorithm = cls(hidden=(16,))
    net = Own(network(algorithm, DISCRETE, 0))
    before: list[Tensor] = [one.detach().clone() for one in net.parameters()]
    made = Learner(algorithm, net, schedule_updates=9, seed=3, batch=8)
    made.step(batches(1)[0])
    assert not all(map(torch.equal, before, net.parameters()))
