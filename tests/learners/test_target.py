"""The target network follows as it is told, is nobody else's memory, and is part of the state."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from equipoise.learners.learner import Learner
from equipoise.types import Algorithm, Batch, LossOutput, Optimizer
from tests.learners.test_learner import batch


class Net(nn.Module):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2, 3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def initial_state(self, n: int) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, kw_only=True)
class Falling(Algorithm):
    """w falls with every update; the buffer counts them; ``seen`` notes what the target network was
    at each.
    """

    default_optimizer: ClassVar[Optimizer] = Optimizer(learning_rate=0.1, schedule="constant")

    seen: Any = None  # two lists: at targets, at loss

    def network(self, spec: Any) -> nn.Module:
        return Net()

    def act(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError

    best = act

    def targets(self, net: Any, target_net: Any, data: Any, *, rng: Any, pool: Any) -> Any:
        self.seen[0].append(look(target_net))
        return {}

    def loss(
        self, net: Any, target_net: Any, batch: Batch, *, group: str, step: float, rng: Any
    ) -> LossOutput:
        self.seen[1].append(look(target_net))
        net.count += 1
        return LossOutput(loss=net.w.sum(), count=torch.tensor(1.0))


def look(net: Any) -> Any:
    return None if net is None else (net.w.detach()[0, 0].item(), int(net.count))


def learner(**options: Any) -> tuple[Learner, tuple[list[Any], list[Any]]]:
    seen: tuple[list[Any], list[Any]] = ([], [])
    algorithm = Falling(seen=seen, **options)
    return Learner(algorithm, algorithm.network(None), schedule_updates=10, seed=0, batch=6), seen


def test_without_target_every_there_is_none() -> None:
    made, seen = learner()
    made.step(batch())
    assert seen == ([None], [None]) and made.state()["target"] == {}


def test_a_hard_copy_every_third_update() -> None:
    made, seen = learner(target_every=3)
    ours = [look(made.net)]
    for _ in range(7):
        made.step(batch())
        ours.append(look(made.net))
    assert seen[0] == seen[1] == [ours[0]] * 3 + [ours[3]] * 3 + [ours[6]], (
        "the bits of the network at updates 0, 3 and 6"
    )
    assert len({w for w, _ in ours}) == 8, "the network did not move"


def test_a_soft_copy_every_update() -> None:
    made, seen = learner(target_every=1, tau=0.25)
    expected, count = made.net.w.detach()[0, 0].item(), 0
    for _ in range(5):
        made.step(batch())
        assert seen[1][-1] == (pytest.approx(expected), count)
        expected += 0.25 * (made.net.w.detach()[0, 0].item() - expected)
        count = int(made.net.count)


def test_it_takes_no_gradient_and_is_not_published() -> None:
    made, _ = learner(target_every=100)
    made.step(batch())
    assert made._target is not None and not any(
        p.requires_grad or p.grad is not None for p in made._target.net.parameters()
    )
    assert made.params().keys() == {"w", "count"} and torch.equal(
        made._target.net.w, torch.ones(2, 3)
    )


def test_a_learner_that_was_loaded_goes_on_to_the_same_bits() -> None:
    one, seen = learner(target_every=3, tau=0.5)
    for _ in range(4):
        one.step(batch())
    other, seen_by_other = learner(target_every=3, tau=0.5)
    other.load(copy.deepcopy(one.state()))
    for made in (one, other):
        for _ in range(4):
            made.step(batch())
    assert seen_by_other[1] == seen[1][4:]
    assert all(torch.equal(one.params()[name], x) for name, x in other.params().items())


def test_a_state_that_does_not_fit_is_refused() -> None:
    with_one, without = learner(target_every=3)[0], learner()[0]
    with pytest.raises(
        ValueError, match="expected a state saved with what target_every=3 asks for, got none"
    ):
        with_one.load(without.state())
    with pytest.raises(
        ValueError, match="expected a state saved with what target_every=0 asks for, got one"
    ):
        without.load(with_one.state())
    state = with_one.state()
    with pytest.raises(
        ValueError,
        match=r"target\.w: expected a tensor float32 \[2, 3\], got a tensor float32 \[3\]",
    ):
        with_one.load({**state, "target": {**state["target"], "w": torch.zeros(3)}})
    with pytest.raises(ValueError, match=r"target\.count: expected a value, got none"):
        with_one.load({**state, "target": {"w": state["target"]["w"]}})
