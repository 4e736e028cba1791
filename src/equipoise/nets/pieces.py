"""Parts of a decoder with gradients by hand, to pass over memory less often."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.nets.function import Context
from equipoise.nets.lora import LoraLinear

# x [N, in], weight [out, in], bias [out] -> [N, out]
Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight by rows (Zhang and Sennrich 2019, arXiv:1910.07467)."""
    z = x.to(weight.dtype)  # under autocast: in float32, as torch's own norms
    y = _RMSNorm.apply(z, weight, eps) if torch.is_grad_enabled() else _normed(z, weight, eps)[0]  # type: ignore[no-untyped-call]
    return y.to(x.dtype)


def _normed(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    scale = (
        torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        .square_()
        .mul_(1 / x.shape[-1])
        .add_(eps)
        .rsqrt_()
    )
    return (x * scale).mul_(weight), scale


class _RMSNorm(torch.autograd.Function):
    """With z = x * scale and g = dy * weight: dx = scale * (g - z * mean(g * z))."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y, scale = _normed(x, weight, eps)
        ctx.save_for_backward(x, weight, scale)
        return y

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        z = x * scale
        product = grad * z
        mean = (product @ weight).div_(x.shape[-1])
        dx = (grad * weight).sub_(z.mul_(mean.unsqueeze(-1))).mul_(scale)
        return dx, product.reshape(-1, x.shape[-1]).sum(0), None


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021, arXiv:2104.09864) on x [N, H, D], whose halves are the
    pairs' two numbers.

    ``cos`` and ``sin`` [N, 1, D] float32, the first half of ``sin`` negative.
    """
    if not torch.is_grad_enabled():
        return _rotated(x, cos, sin, 1)
    turned: Tensor = _Rotate.apply(x, cos, sin)  # type: ignore[no-untyped-call]
    return turned


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin, value=sign).to(x.dtype)


class _Rotate(torch.autograd.Function):
    """The gradient is the rotation back."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(x, cos, sin, 1)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotated(grad, cos, sin, -1), None, None


def apply(layer: nn.Linear, x: Tensor, linear: Linear | None) -> Tensor:
    """The layer's output by ``linear``; None: its own."""
    if linear is None:
        return layer(x)  # type: ignore[no-any-return]
    return linear(x, layer.weight, layer.bias)


def together(x: Tensor, *layers: nn.Linear, linear: Linear | None = None) -> Tensor:
    """Outputs of several layers side by side, by one product if their weights allow it; with
    ``linear``, by one for each.
    """
    if linear is not None:
        return torch.cat([apply(layer, x, linear) for layer in layers], -1)
    if any(isinstance(layer, LoraLinear) for layer in layers):
        return torch.cat([layer(x) for layer in layers], -1)
    weights = [layer.weight for layer in layers]
    biases: list[Tensor | None] = [layer.bias for layer in layers]
    bias = torch.cat([one for one in biases if one is not None]) if biases[0] is not None else None
    weight = neighbours([one.detach() for one in weights])
    if torch.is_grad_enabled():
        if weight is None or x.dim() != 2:
            return F.linear(x, torch.cat(weights), bias)
        return _Neighbours.apply(x, weight, bias, *weights)  # type: ignore[no-any-return,no-untyped-call]
    if weight is None:  # to copy them would cost more than products
        return torch.cat([F.linear(x, layer.weight, layer.bias) for layer in layers], -1)
    return F.linear(x, weight, bias)


class _Neighbours(torch.autograd.Function):
    """A linear layer over several neighbouring weights, without a copy of them."""

    @staticmethod
    def forward(
        ctx: Context, x: Tensor, weight: Tensor, bias: Tensor | None, *parts: Tensor
    ) -> Tensor:
        kind = x.device.type
        ctx.formats = x.dtype, weight.dtype
        ctx.rows = [len(part) for part in parts]
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            x, weight = x.to(dtype), weight.to(dtype)
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight = ctx.formats
        dx = (grad @ weight).to(of_x) if ctx.needs_input_grad[0] else None
        db = grad.sum(0).to(of_weight) if ctx.needs_input_grad[2] else None
        if not any(ctx.needs_input_grad[3:]):  # frozen
            return dx, None, db, *[None] * len(ctx.rows)
        return dx, None, db, *torch.split((grad.T @ x).to(of_weight), ctx.rows)


def neighbours(weights: Sequence[Tensor]) -> Tensor | None:
    """Matrices that lie one behind the other in memory, as one; else None."""
    first, rows, end = weights[0], 0, weights[0].data_ptr()
    for one in weights:
        if one.data_ptr() != end or not one.is_contiguous():
            return None
        rows, end = rows + one.shape[0], end + one.numel() * one.element_size()
    if first.untyped_storage().data_ptr() + first.untyped_storage().nbytes() < end:
        return None  # by chance, in memory of another tensor
    return first.as_strided((rows, first.shape[1]), (first.shape[1], 1))


def put_together(*layers: nn.Linear) -> None:
    """Move the weights of layers into one block of memory."""
    block = torch.cat([layer.weight.data for layer in layers])
    at = 0
    for layer in layers:
        rows = layer.weight.shape[0]
        layer.weight.data, at = block[at : at + rows], at + rows
