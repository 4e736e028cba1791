"""Activations of hidden layers. Each may overwrite its input, which saves memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.nets.function import Context

LARGE = 2**14  # numbers: below it the additional calls of ``of_sigmoid_`` cost as much as they save
VECTORS = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def tanh_(x: Tensor) -> Tensor:
    """tanh, by way of a sigmoid if ``x`` is large and float32 on a CPU.

    torch's tanh takes 2.6 ns a number on an AMD EPYC, more than the product of matrices before it;
    its sigmoid, which is vectorised, makes it 0.6 ns with AVX-512 and 0.9 ns with AVX2. Without
    either it is slower than tanh and not used (``benchmarks/activations.py``). The largest error is
    2e-7 in place of 3e-8.
    """
    if (
        torch.compiler.is_compiling()
        or x.numel() < LARGE
        or not VECTORS
        or x.dtype != torch.float32
        or x.device.type != "cpu"
    ):
        return torch.tanh_(x)
    if torch.is_grad_enabled() and x.requires_grad:
        y: Tensor = _Tanh.apply(x)  # type: ignore[no-untyped-call]
        return y
    return of_sigmoid_(x)


def of_sigmoid_(x: Tensor) -> Tensor:
    """tanh(x) = 1 - 2 sigmoid(-2x), in place."""
    return x.mul_(-2).sigmoid_().mul_(-2).add_(1)


class _Tanh(torch.autograd.Function):
    """``of_sigmoid_`` with the gradient of tanh, 1 - y^2, which needs the output y alone."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        y = of_sigmoid_(x)
        ctx.mark_dirty(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        # one pass; grad * (1 - y^2) takes three
        gradient: Tensor = torch.ops.aten.tanh_backward(grad, y)
        return gradient


ACTIVATIONS = {"tanh": tanh_, "relu": torch.relu_, "elu": F.elu_, "silu": F.silu}
