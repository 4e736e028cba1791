"""Activations: tanh by way of a sigmoid is tanh, in value and gradient, and is taken only where it
is faster.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from equipoise.nets import activations
from equipoise.nets.activations import ACTIVATIONS, LARGE, tanh_


@pytest.fixture(autouse=True)
def vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor with AVX2, whatever this one has."""
    monkeypatch.setattr(activations, "VECTORS", True)


def both(x: Tensor, weight: Tensor) -> list[list[Tensor]]:
    """(value, gradient) of ours, and of torch's in float64."""
    results: list[list[Tensor]] = []
    for call, given in ((tanh_, x.clone()), (torch.tanh, x.double())):
        leaf = given.requires_grad_()
        y = call(leaf * 1)
        y.backward(weight.to(y.dtype))
        assert leaf.grad is not None
        results.append([y.detach().double(), leaf.grad.double()])
    return results


@pytest.mark.parametrize("scale", [1e-4, 0.1, 1.0, 20.0, 1e4])
@pytest.mark.parametrize("numbers", [7, LARGE + 5])
def test_it_is_tanh(numbers: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(numbers, generator=generator) * scale
    ours, theirs = both(x, torch.randn(numbers, generator=generator))
    torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=2.5e-7)
    torch.testing.assert_close(ours[1], theirs[1], rtol=0, atol=2e-6)


def test_its_ends_are_exact() -> None:
    x = torch.tensor([-torch.inf, torch.inf, 0.0, -1e30, 1e30]).repeat(LARGE)
    assert tanh_(x)[:5].tolist() == [-1, 1, 0, -1, 1]
    assert tanh_(torch.full((LARGE,), torch.nan)).isnan().all()


def test_it_overwrites_its_input() -> None:
    x = torch.randn(LARGE)
    assert tanh_(x) is x
    y = torch.randn(LARGE, requires_grad=True) * 1
    assert tanh_(y).data_ptr() == y.data_ptr()


@pytest.mark.parametrize(
    ("dtype", "numbers", "here"),
    [
        (torch.float32, LARGE, True),
        (torch.float32, LARGE - 1, False),
        (torch.float64, LARGE, False),
        (torch.bfloat16, LARGE, False),
    ],
)
def test_it_is_taken_where_it_is_faster_and_exact_enough(
    dtype: torch.dtype, numbers: int, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []

    def noted(x: Tensor) -> Tensor:
        called.append(len(x))
        return x

    monkeypatch.setattr(activations, "of_sigmoid_", noted)
    ACTIVATIONS["tanh"](torch.zeros(numbers, dtype=dtype))
    assert called == [numbers] * here
    monkeypatch.setattr(activations, "VECTORS", False)
    ACTIVATIONS["tanh"](torch.zeros(numbers, dtype=dtype))
    assert called == [numbers] * here


def test_gradients_of_gradients_are_those_of_tanh() -> None:
    x = torch.randn(LARGE, requires_grad=True)
    (first,) = torch.autograd.grad(tanh_(x * 1).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    plain = x.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad(torch.tanh(plain).square().sum(), plain, create_graph=True)
    (wanted,) = torch.autograd.grad(wanted.sum(), plain)
    torch.testing.assert_close(second.double(), wanted, rtol=1e-4, atol=1e-5)
