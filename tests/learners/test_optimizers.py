"""Adam, AdamW and RMSprop of ours are those of torch, to the bit; what they remember is loaded
whole or refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from equipoise.learners.optimizers import Descent, descent
from equipoise.types import Optimizer

EPSILON, BETAS, DECAY = 1e-5, (0.8, 0.95), 0.9


def ours(kind: Any, flat: nn.Parameter, weight_decay: float = 0.0) -> Descent:
    settings = Optimizer(
        name=kind, epsilon=EPSILON, betas=BETAS, decay=DECAY, weight_decay=weight_decay
    )
    return descent(settings, flat)


def theirs(kind: str, flat: nn.Parameter, weight_decay: float) -> Any:
    if kind == "rmsprop":
        return torch.optim.RMSprop(
            [flat], eps=EPSILON, alpha=DECAY, foreach=True, weight_decay=weight_decay
        )
    adam = torch.optim.AdamW if kind == "adamw" else torch.optim.Adam
    return adam([flat], eps=EPSILON, betas=BETAS, fused=True, weight_decay=weight_decay)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("size", [1, 7, 4099])
@pytest.mark.parametrize("kind", ["adam", "adamw", "rmsprop"])
def test_they_take_the_steps_of_torch_to_the_bit(kind: str, size: int, weight_decay: float) -> None:
    mine, other = (nn.Parameter(torch.linspace(-1, 1, size)) for _ in range(2))
    one, two = ours(kind, mine, weight_decay), theirs(kind, other, weight_decay)
    for step in range(30):
        gradient = torch.randn(size) * 10.0 ** (step % 5 - 3)
        gradient[:: step + 2] = 0.0
        mine.grad, other.grad = gradient.clone(), gradient.clone()
        two.param_groups[0]["lr"] = 0.1 / (step + 1)
        one.step(0.1 / (step + 1))
        two.step()
        assert torch.equal(mine, other), step
    for name, slot in one.slots.items():
        assert torch.equal(slot, two.state[other][name]), name


@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
def test_a_loaded_one_goes_on_as_the_first(kind: str) -> None:
    flats = [nn.Parameter(torch.ones(5)) for _ in range(2)]
    made = [ours(kind, flat) for flat in flats]
    for flat in flats:
        flat.grad = torch.arange(5.0)
    made[0].step(0.1)
    made[1].load({name: slot.clone() for name, slot in made[0].slots.items()})
    flats[1].data.copy_(flats[0].data)
    for one in made:
        one.step(0.1)
    assert torch.equal(*flats)
