"""Adam and RMSprop of ours are those of torch, to the bit; what they remember is loaded whole or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from equipoise.learners.optimizers import Adam, Optimizer, RMSprop

EPSILON, DECAY = 1e-5, 0.99


def ours(kind: str, flat: nn.Parameter) -> Optimizer:
    return Adam(flat, epsilon=EPSILON) if kind == "adam" else RMSprop(flat, epsilon=EPSILON, decay=DECAY)


def theirs(kind: str, flat: nn.Parameter) -> Any:
    if kind == "adam":
        return torch.optim.Adam([flat], eps=EPSILON, fused=True)
    return torch.optim.RMSprop([flat], eps=EPSILON, alpha=DECAY, foreach=True)


@pytest.mark.parametrize("size", [1, 7, 4099])
@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
def test_they_take_the_steps_of_torch_to_the_bit(kind: str, size: int) -> None:
    mine, other = (nn.Parameter(torch.linspace(-1, 1, size)) for _ in range(2))
    one, two = ours(kind, mine), theirs(kind, other)
    for step in range(30):
        gradient = torch.randn(size) * 10.0 ** (step % 5 - 3)
        gradient[:: step + 2] = 0.0
        mine.grad, other.grad = gradient.clone(), gradient.clone()
        one.rate = two.param_groups[0]["lr"] = 0.1 / (step + 1)
        one.step()
        two.step()
        assert torch.equal(mine, other), step
    for name, slot in one.slots.items():
        assert torch.equal(slot, two.state[other][name]), name


@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
def test_a_loaded_one_goes_on_as_the_first(kind: str) -> None:
    flats = [nn.Parameter(torch.ones(5)) for _ in range(2)]
    made = [ours(kind, flat) for flat in flats]
    for one, flat in zip(made, flats, strict=True):
        one.rate, flat.grad = 0.1, torch.arange(5.0)
    made[0].step()
    made[1].load({name: slot.clone() for name, slot in made[0].slots.items()})
    flats[1].data.copy_(flats[0].data)
    for one in made:
        one.step()
    assert torch.equal(*flats)


def test_slots_of_another_optimiser_are_refused_and_nothing_is_taken() -> None:
    made = ours("adam", nn.Parameter(torch.ones(5)))
    good = {"exp_avg": torch.ones(5), "exp_avg_sq": torch.ones(5), "step": torch.ones(())}
    with pytest.raises(ValueError, match=r"expected 'exp_avg' of shape \(5,\), got only \['square_avg'\]"):
        made.load({"square_avg": torch.ones(5)})
    with pytest.raises(ValueError, match=r"expected 'exp_avg_sq' of shape \(5,\), got \(6,\)"):
        made.load({**good, "exp_avg_sq": torch.ones(6)})
    assert not any(slot.any() for slot in made.slots.values())
