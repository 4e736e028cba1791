"""Batch renormalisation against algorithm 1 of the paper, its running statistics, and who may
change them.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.learners.pool import ALONE
from equipoise.nets.renorm import (
    D_MAX,
    EPSILON,
    MOMENTUM,
    R_MAX,
    WARM_UP,
    BatchRenorm,
    RenormMLP,
    RenormTwins,
    by_batch,
    norms,
)
from equipoise.nets.twin import TwinMLP


def norm(members: int = 0, *, batches: int = 0) -> BatchRenorm:
    made = BatchRenorm(3, members)
    with torch.no_grad():
        made.scale.uniform_(0.5, 2.0)
        made.bias.normal_()
        made.mean.normal_()
        made.var.uniform_(0.2, 3.0)
        made.batches.fill_(batches)
    return made


def of_paper(x: Tensor, made: BatchRenorm, member: int | None) -> Tensor:
    """Algorithm 1 of Ioffe 2017, a feature at a time."""
    mean, var, scale, bias = (
        t if member is None else t[member, 0] for t in (made.mean, made.var, made.scale, made.bias)
    )
    columns = []
    for f in range(3):
        m, s = x[:, f].mean(), (x[:, f].var(correction=0) + EPSILON).sqrt()
        r, d = 1.0, 0.0
        if made.batches >= WARM_UP:
            std = float(var[f] + EPSILON) ** 0.5
            r = min(max(s.item() / std, 1 / R_MAX), R_MAX)
            d = min(max((m.item() - mean[f].item()) / std, -D_MAX), D_MAX)
        columns.append(scale[f] * ((x[:, f] - m) / s * r + d) + bias[f])
    return torch.stack(columns, -1)


@pytest.mark.parametrize("spread", [0.1, 1.0, 30.0])  # with r and d at their bounds, too
@pytest.mark.parametrize("batches", [0, WARM_UP - 1, WARM_UP])
@pytest.mark.parametrize("members", [0, 2])
def test_a_batch_is_normalised_as_the_paper_says(members: int, batches: int, spread: float) -> None:
    torch.manual_seed(0)
    made = norm(members, batches=batches)
    x = (spread * torch.randn(*([members] if members else []), 40, 3) + 2.0).requires_grad_()
    with by_batch(made):
        got = made(x)
    parts = (
        [of_paper(x, made, None)]
        if not members
        else [of_paper(x[i], made, i) for i in range(members)]
    )
    wanted = parts[0] if not members else torch.stack(parts)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    weight = torch.randn_like(got)
    mine, its = (
        torch.autograd.grad((y * weight).sum(), [x, made.scale, made.bias]) for y in (got, wanted)
    )
    for one, other in zip(mine, its, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_outside_a_batch_a_row_depends_on_no_other_and_changes_nothing() -> None:
    made = norm()
    before = copy.deepcopy(made.state_dict())
    x = torch.randn(20, 3)
    together, alone = made(x), torch.cat([made(x[i : i + 1]) for i in range(20)])
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(
        together, made.scale * (x - made.mean) / (made.var + EPSILON).sqrt() + made.bias
    )
    made.absorb(ALONE)
    assert all(torch.equal(before[name], t) for name, t in made.state_dict().items())


def test_a_batch_enters_the_running_statistics_once_and_when_asked() -> None:
    made = norm(2)
    mean, var = made.mean.clone(), made.var.clone()
    x = torch.randn(2, 50, 3) * 3 + 1
    with by_batch(made):
        made(x)
    assert torch.equal(made.mean, mean) and made.batches == 0
    made.absorb(ALONE)
    torch.testing.assert_close(made.mean, mean + MOMENTUM * (x.mean(1, keepdim=True) - mean))
    torch.testing.assert_close(
        made.var, var + MOMENTUM * (x.var(1, correction=0, keepdim=True) - var)
    )
    after = made.mean.clone()
    made.absorb(ALONE)
    assert torch.equal(made.mean, after) and made.batches == 1


def test_the_context_ends_with_an_error_too() -> None:
    net = RenormMLP(3, (8,), "relu")

    def work() -> None:
        with by_batch(net):
            assert all(one.by_batch for one in norms(net))
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert not any(one.by_batch for one in norms(net))


@pytest.mark.parametrize("batch", [False, True])
def test_the_twins_are_two_networks(batch: bool) -> None:
    torch.manual_seed(0)
    twins = RenormTwins(5, (16, 8), "relu", 1)
    for one in norms(twins):
        one.mean.normal_()
        one.var.uniform_(0.2, 3.0)
    x = torch.randn(30, 5)
    with by_batch(twins) if batch else nullcontext():
        got = twins(x)
    for member in range(2):
        y = x
        for n, (w, b, one) in enumerate(
            zip(twins.weights, twins.biases, norms(twins), strict=True)
        ):
            mean = y.mean(0) if batch else one.mean[member, 0]
            var = y.var(0, correction=0) if batch else one.var[member, 0]
            y = (y - mean) / (var + EPSILON).sqrt() @ w[member] + b[member, 0]
            y = y.relu() if n < 2 else y
        torch.testing.assert_close(got[member], y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("members", [1, 2])
def test_the_smaller_one_and_its_slope(members: int) -> None:
    """The same answer as a network without norms gives, whose slope is worked out by hand, where
    the norms do nothing.
    """
    torch.manual_seed(0)
    renormed, plain = RenormTwins(5, (16,), "relu", 1), TwinMLP(5, (16,), "relu", 1)
    plain.load_state_dict(renormed.state_dict(), strict=False)
    for one in norms(renormed):
        one.var.fill_(1.0 - EPSILON)
    x = torch.randn(40, 5)
    mine, its = (net.least(x, 2, members=members, select=False) for net in (renormed, plain))
    torch.testing.assert_close(mine[0], its[0])
    torch.testing.assert_close(mine[1], its[1])
    assert all(p.grad is None for p in renormed.parameters())


class Halves:
    """The pool of the second of two learners, the first of which gave these."""

    def __init__(self, given: list[Tensor]) -> None:
        self.given = given

    def sum(self, x: Tensor) -> Tensor:
        return x + self.given.pop(0)

    def max(self, x: Tensor) -> Tensor:
        return x


def test_learners_of_one_policy_keep_the_same_statistics() -> None:
    """Those of all rows, where the parts are of different sizes."""
    x = torch.randn(30, 3) * 2 + 1
    whole, part = norm(), BatchRenorm(3)
    part.load_state_dict(whole.state_dict())
    first: Any = x[:10]
    given = [
        torch.full((3,), 10.0),
        first.sum(0),
        10 * (first.var(0, correction=0) + (first.mean(0) - x.mean(0)).square()),
    ]
    for one, rows in ((whole, x), (part, x[10:])):
        with by_batch(one):
            one(rows)
        one.absorb(ALONE if one is whole else Halves(given))
    torch.testing.assert_close(part.mean, whole.mean)
    torch.testing.assert_close(part.var, whole.var)
