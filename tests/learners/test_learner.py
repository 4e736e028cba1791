"""Epochs, minibatches, sums and counts, clipping, schedules, groups."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.learners.learner import Learner
from equipoise.learners.minibatch import minibatches
from equipoise.learners.parameters.flat import ROW, flatten, norm_of
from equipoise.learners.steps import NonFiniteUpdate, checked
from equipoise.types import Algorithm, Batch, LossOutput, Optimizer, Trajectory


def batch(rows: int = 4, streams: int = 6) -> Batch:
    """Every row is its own number: 100 t + b."""
    number = torch.arange(rows + 1)[:, None] * 100.0 + torch.arange(streams)
    data = Trajectory(
        obs=number[..., None],
        first=torch.zeros(rows + 1, streams, dtype=torch.bool),
        action=number[:-1].long(),
        behaviour={"logp": -number[:-1]},
        reward=number[:-1].clone(),
        mask=torch.ones(rows, streams, dtype=torch.bool),
        bootstrap=torch.ones(rows, streams, dtype=torch.bool),
        version=torch.zeros(rows, streams, dtype=torch.int64),
        state={"h": torch.arange(streams)[:, None].float()},
        context={"stream": torch.arange(streams), "start": torch.zeros(streams, dtype=torch.int64)},
    )
    keys = np.stack([np.arange(streams), np.zeros(streams, int)], 1)
    return Batch(
        data=data,
        keys=keys,
        weight=torch.arange(streams).float(),
        targets={"target": number[:-1] + 0.5},
    )


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("count", [2, 3, 6])
def test_minibatches_are_disjoint_and_complete_and_aligned(by_rows: bool, count: int) -> None:
    rng = torch.Generator().manual_seed(0)
    seen = []
    for part in minibatches(batch(), count, by_rows=by_rows, rng=rng):
        data = part.data
        rows = data.reward.shape[0]
        assert torch.equal(data.obs[:rows, :, 0], data.reward)
        assert torch.equal(data.behaviour["logp"], -data.reward) and torch.equal(
            data.action, data.reward.long()
        )
        assert torch.equal(part.targets["target"], data.reward + 0.5)
        stream = (data.reward[0] % 100).long()
        for named in (
            data.context["stream"],
            data.state["h"][:, 0].long(),
            part.weight.long(),
            torch.from_numpy(part.keys[:, 0]),
        ):
            assert torch.equal(named, stream)
        assert rows == 1 if by_rows else data.obs.shape[0] == rows + 1
        seen += data.reward.flatten().tolist()
    assert sorted(seen) == sorted(batch().data.reward.flatten().tolist())


def test_one_minibatch_is_the_batch_itself() -> None:
    whole = batch()
    (part,) = minibatches(whole, 1, by_rows=True, rng=torch.Generator())
    assert part is whole


def test_flat_parameters_and_gradients_are_views() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(5, 3)
    before = net(x)
    flat = flatten(list(net.parameters()))
    assert torch.equal(net(x), before)
    net(x).sum().backward()
    assert flat.grad is not None and float(flat.grad[-1]) == 5.0  # the last bias
    with torch.no_grad():
        flat.zero_()
    assert not net(x).any()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    def initial_state(self, n: int) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, kw_only=True)
class Quadratic(Algorithm):
    """a goes to the mean reward of real rows; b, the second group, is skipped unless it is asked
    for.
    """

    default_optimizer: ClassVar[Optimizer] = Optimizer(
        learning_rate=0.1, schedule="constant", max_grad_norm=0.0
    )

    with_b: bool = False

    def network(self, spec: Any) -> nn.Module:
        return Net()

    def groups(self, net: Any) -> dict[str, list[nn.Parameter]]:
        return {"a": [net.a], "b": [net.b]}

    def act(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError

    best = act

    def loss(
        self, net: Any, target_net: Any, batch: Batch, *, group: str, step: float, rng: Any
    ) -> LossOutput | None:
        if group == "b" and not self.with_b:
            return None
        value = net.a if group == "a" else net.b
        data = batch.data
        error = (value - data.reward).square() * data.mask
        return LossOutput(
            loss=error.sum(),
            count=data.mask.sum(),
            metrics={"error": (error.detach().sum(), data.mask.sum())},
        )


def learner(algorithm: Quadratic, *, precision: Any = "fp32", **optimizer: Any) -> Learner:
    """``optimizer``: settings that differ from the algorithm's default."""
    return Learner(
        algorithm,
        algorithm.network(None),
        optimizer=replace(algorithm.default_optimizer, **optimizer),
        precision=precision,
        schedule_updates=10,
        seed=0,
        batch=6,
    )


def test_a_loss_is_divided_by_its_real_rows() -> None:
    made, whole = learner(Quadratic()), batch()
    whole.data.mask[1:] = False
    made.step(whole)
    assert float(made.parameters.gradient("a")[0]) == pytest.approx(
        -2 * float(whole.data.reward[0].mean())
    )


def test_a_batch_without_a_real_row_moves_nothing() -> None:
    made, whole = learner(Quadratic()), batch()
    whole.data.mask[:] = False
    made.step(whole)
    assert made.net.a.item() == 0.0


def test_groups_step_by_themselves_and_may_be_skipped() -> None:
    made = learner(Quadratic())
    made.step(batch())
    assert made.net.a.item() != 0.0 and made.net.b.item() == 0.0
    made = learner(Quadratic(with_b=True))
    out = made.step(batch())
    assert made.net.b.item() != 0.0 and {"grad_norm/a", "grad_norm/b"} <= out.metrics.keys()


def test_epochs_times_minibatches_optimiser_steps_make_one_version() -> None:
    made, pulses = learner(Quadratic(epochs=3, minibatches=2)), []
    made.pulse = lambda: pulses.append(made.version)
    out = made.step(batch())
    assert made.version == 1 and float(out.metrics["grad_norm/a"][1]) == 6
    assert float(out.metrics["error"][1]) == 3 * 24
    assert pulses == [0] * 6, "between two versions there is word of every minibatch"


def test_gradients_are_clipped_by_their_norm() -> None:
    made = learner(Quadratic(), max_grad_norm=0.5)
    out = made.step(batch())
    assert float(made.parameters.gradient("a")[0].norm()) == pytest.approx(0.5, rel=1e-4)
    assert float(out.metrics["grad_norm/a"][0]) > 100, "the metric is the norm before the clip"


class Noticed(torch.autograd.Function):
    """Its value, and how exact products of matrices are forward and backward."""

    seen: ClassVar[list[str]] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        Noticed.seen.append(torch.get_float32_matmul_precision())
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        Noticed.seen.append(torch.get_float32_matmul_precision())
        return grad


@dataclass(frozen=True, kw_only=True)
class Noticing(Quadratic):
    def loss(self, net: Any, *args: Any, **kwargs: Any) -> LossOutput | None:
        out = super().loss(net, *args, **kwargs)
        return None if out is None else replace(out, loss=Noticed.apply(out.loss))


@pytest.mark.parametrize(
    ("precision", "within"), [("fp32", "highest"), ("medium", "medium"), ("bf16", "highest")]
)
def test_a_loss_and_its_gradient_are_computed_alike(precision: Any, within: str) -> None:
    Noticed.seen.clear()
    learner(Noticing(), precision=precision).step(batch())
    assert Noticed.seen == [within, within] and torch.get_float32_matmul_precision() == "highest"


def rates(made: Learner, monkeypatch: pytest.MonkeyPatch, updates: int) -> dict[str, list[float]]:
    """The learning rate of every step of every group."""
    found: dict[str, list[float]] = {name: [] for name in made.parameters.optimizers}
    for name, optimizer in made.parameters.optimizers.items():
        monkeypatch.setattr(optimizer, "step", found[name].append)
    for _ in range(updates):
        made.step(batch())
    return found


def test_the_learning_rate_is_annealed_to_the_end_of_the_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = rates(learner(Quadratic(), schedule="linear"), monkeypatch, 12)["a"]
    assert seen[:3] == pytest.approx([0.1, 0.09, 0.08]) and seen[10:] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("schedule", "warmup", "shares"),
    [
        ("constant", 0.0, [1] * 10),
        ("constant", 0.4, [0, 0.25, 0.5, 0.75] + [1] * 6),
        ("linear", 0.5, [0, 0.2, 0.4, 0.6, 0.8, 1, 0.8, 0.6, 0.4, 0.2]),
        ("cosine", 0.0, [(1 + math.cos(math.pi * n / 10)) / 2 for n in range(10)]),
        ("cosine", 0.2, [0, 0.5] + [(1 + math.cos(math.pi * n / 8)) / 2 for n in range(8)]),
    ],
)
def test_a_schedule_is_what_it_says(
    schedule: str, warmup: float, shares: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = learner(Quadratic(with_b=True), schedule=schedule, warmup=warmup, rates={"b": 2.0})
    assert rates(made, monkeypatch, 10) == {
        "a": pytest.approx([0.1 * share for share in shares]),
        "b": pytest.approx([2.0 * share for share in shares]),
    }


def test_several_epochs_are_the_same_for_the_same_seed() -> None:
    algorithm = Quadratic(epochs=2, minibatches=3)
    one, two = learner(algorithm), learner(algorithm)
    for made in (one, two):
        made.step(batch())
    assert torch.equal(one.net.a, two.net.a)


def test_more_minibatches_than_windows_of_a_recurrent_net_are_refused() -> None:
    class Recurrent(Net):
        def initial_state(self, n: int) -> dict[str, Any]:
            return {"h": torch.zeros(n)}

    with pytest.raises(ValueError, match="minibatches: expected at most 6"):
        Learner(Quadratic(minibatches=7), Recurrent(), schedule_updates=1, seed=0, batch=6)


@pytest.mark.parametrize("rows", [slice(None), slice(2, 3)])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e25])
def test_a_loss_that_is_no_number_touches_no_weight(value: float, rows: slice) -> None:
    made, whole = learner(Quadratic(with_b=True), max_grad_norm=0.5), batch()
    made.step(batch())
    before = {name: p.clone() for name, p in made.net.named_parameters()}
    whole.data.reward[rows] = value
    with pytest.raises(
        NonFiniteUpdate, match=r"group 'a', update 2: expected a finite loss, got loss (nan|inf)"
    ):
        made.step(whole)
    assert (
        all(torch.equal(p, before[name]) for name, p in made.net.named_parameters())
        and made.version == 1
    )


def test_a_gradient_that_is_no_number_is_named() -> None:
    class Steep(Quadratic):
        def loss(
            self, net: Any, target_net: Any, batch: Batch, *, group: str, step: float, rng: Any
        ) -> LossOutput | None:
            return (
                None
                if group == "b"
                else LossOutput(loss=net.a.sqrt().sum(), count=torch.tensor(1.0))
            )

    made = learner(Steep())
    with pytest.raises(
        NonFiniteUpdate, match=r"finite grad_norm/a, got loss 0.0 and grad_norm/a inf"
    ):
        made.step(batch())
    assert made.net.a.item() == 0.0


def test_on_a_device_one_look_a_report_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: bad minibatches change nothing by themselves, and ``settle`` raises what it
    finds.
    """
    made, whole, looks = (
        learner(Quadratic(minibatches=6, epochs=2), max_grad_norm=0.5, name="rmsprop"),
        batch(),
        [],
    )
    made.looks = False
    look = made._look

    def counting(steps: Any, seen: Any) -> None:
        looks.append(len(seen))
        look(steps, seen)

    monkeypatch.setattr(made, "_look", counting)
    made.step(batch())
    made.step(batch())
    assert looks == []
    made.settle()
    made.settle()
    assert looks == [24]
    whole.data.reward[:] = float("nan")
    before = made.net.a.item()
    made.step(whole)
    assert made.net.a.item() == before
    made.step(batch())
    assert made.net.a.item() != before
    with pytest.raises(NonFiniteUpdate, match="group 'a', update 3"):
        made.settle()
    assert looks == [24, 24] and made.version == 4


@pytest.mark.parametrize("size", [10, 3 * ROW + 7, 2_000_000])
def test_the_norm_of_a_long_gradient_is_exact(size: int) -> None:
    x = torch.randn(size, generator=torch.Generator().manual_seed(size)) * 1e-4
    torch.testing.assert_close(
        norm_of(x).double(), torch.linalg.vector_norm(x.double()), rtol=1e-6, atol=0
    )


def test_what_a_loss_returns_is_looked_at() -> None:
    pair = (torch.zeros((), requires_grad=True), torch.ones(()))
    out = LossOutput(loss=pair[0], count=pair[1], metrics={"x": pair})
    assert checked(out, object()) is out and checked(None, object()) is None
    number: Any = 1
    with pytest.raises(TypeError, match=r"object.loss\(\): expected count to be a tensor, got int"):
        checked(LossOutput(loss=pair[0], count=number), object())
    with pytest.raises(
        TypeError, match=r"object.loss\(\) to return a LossOutput or None, got Tensor"
    ):
        checked(pair[0], object())
    for loss in (pair[1], pair[0].expand(2)):
        with pytest.raises(ValueError, match=r"object.loss\(\): expected loss to be one number"):
            checked(LossOutput(loss=loss, count=pair[1]), object())
    wrong: Any
    for wrong in (3.0, pair[0]):
        with pytest.raises(TypeError, match=r"metrics\['x'\] to be \(sum, count\)"):
            checked(replace(out, metrics={"x": wrong}), object())


@pytest.mark.parametrize("by_rows", [True, False])
def test_targets_that_no_minibatch_can_be_cut_from_are_refused(by_rows: bool) -> None:
    whole = replace(batch(), targets={"target": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"targets\(\) to return tensors \[T, B, ...\], .* \[3\]"):
        list(minibatches(whole, 2, by_rows=by_rows, rng=torch.Generator()))
    assert list(minibatches(whole, 1, by_rows=by_rows, rng=torch.Generator())) == [whole]
