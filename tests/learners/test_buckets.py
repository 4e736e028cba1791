"""A sum of gradients that ends with a lost learner leaves nothing behind for the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.learners.parameters.buckets import MORE, Buckets
from equipoise.learners.parameters.flat import flatten
from equipoise.learners.pool import LearnerLost


class Breaking:
    """The pool of two learners with equal gradients, of whom one is lost in the first sum."""

    def __init__(self) -> None:
        self.asked = 0

    def add_up(self, x: Tensor) -> Callable[[], object]:
        self.asked += 1
        first = self.asked == 1

        def wait() -> None:
            if first:
                raise LearnerLost("gone")
            x.mul_(2.0)

        return wait


def test_the_step_after_a_lost_learner_waits_for_its_own_sums_alone() -> None:
    layer = nn.Linear(3, 1)
    params = list(layer.parameters())
    flat, pool = flatten(params, MORE), Breaking()
    given: Any = pool
    buckets = Buckets(given, flat, params)

    def step() -> None:
        assert flat.grad is not None
        flat.grad.zero_()
        loss = layer(torch.ones(2, 3)).sum()
        buckets.begin(loss, torch.tensor(2.0))
        loss.backward()
        buckets.finish()

    with pytest.raises(LearnerLost):
        step()
    step()
    assert (
        flat.grad is not None and flat.grad.tolist() == [4.0] * 4 and float(buckets.more[1]) == 4.0
    )
