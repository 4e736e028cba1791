"""The loss of preferences against formulas by hand."""

from __future__ import annotations

import math

import pytest
import torch

from equipoise.returns import preference_loss


def test_the_loss_is_the_cross_entropy_of_bradley_and_terry() -> None:
    logit, share = torch.tensor([2.0, -1.0, 0.5]), torch.tensor([1.0, 0.0, 0.5])
    right = [math.log1p(math.exp(-2)), math.log1p(math.exp(-1))]
    tie = 0.5 * (math.log1p(math.exp(-0.5)) + math.log1p(math.exp(0.5)))
    assert float(preference_loss(logit=logit, share=share)) == pytest.approx(sum([*right, tie]) / 3)
    weight = torch.tensor([2.0, 0.0, 1.0])
    weighted = float(preference_loss(logit=logit, share=share, weight=weight))
    assert weighted == pytest.approx((2 * right[0] + tie) / 3)
    assert float(preference_loss(logit=logit, share=share, weight=torch.zeros(3))) == 0.0


def test_a_margin_moves_preferences_and_no_tie() -> None:
    logit, share = torch.tensor([2.0, -2.0, 0.0]), torch.tensor([1.0, 0.0, 0.5])
    loss = [
        float(preference_loss(logit=logit[i : i + 1], share=share[i : i + 1], margin=torch.ones(1)))
        for i in range(3)
    ]
    assert loss == pytest.approx([math.log1p(math.exp(-1))] * 2 + [math.log(2)])


def test_noise_bounds_the_loss_of_a_wrong_answer() -> None:
    sure = torch.tensor([80.0])
    assert float(preference_loss(logit=sure, share=torch.zeros(1))) == pytest.approx(80.0)
    noisy = float(preference_loss(logit=sure, share=torch.zeros(1), noise=0.1))
    assert noisy == pytest.approx(-math.log(0.05))


def test_axes_in_front_are_separate_losses_and_gradients_flow() -> None:
    logit = torch.randn(3, 5, requires_grad=True)
    share, weight = torch.rand(5), torch.rand(3, 5)
    loss = preference_loss(logit=logit, share=share, weight=weight, noise=0.2)
    alone = [
        preference_loss(logit=logit[i], share=share, weight=weight[i], noise=0.2) for i in range(3)
    ]
    torch.testing.assert_close(loss, torch.stack(alone))
    (grad,) = torch.autograd.grad(loss[0], logit)
    assert grad[0].abs().min() > 0 and grad[1:].abs().max() == 0
