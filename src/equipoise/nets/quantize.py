"""Weights of layers as int8 with a scale for each output channel, and back."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# an RNN's channels are its gates' outputs
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.RNNBase)
LARGEST = 127


def layer_weights(net: nn.Module) -> list[str]:
    """Names of the weights of linear, convolutional and recurrent layers, without biases."""
    return [
        f"{name}.{own}" if name else own
        for name, module in net.named_modules()
        if isinstance(module, LAYERS)
        for own, parameter in module.named_parameters(recurse=False)
        if parameter.ndim > 1
    ]


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[out, ...] -> int8 of that shape, and scales [out]: symmetric, up to 127."""
    scale = weight.flatten(1).abs().amax(1) / LARGEST
    over = torch.where(scale > 0, scale, 1.0).view(-1, *[1] * (weight.ndim - 1))
    return (weight / over).round_().clamp_(-LARGEST, LARGEST).to(torch.int8), scale


def dequantize(q: Tensor, scale: Tensor, out: Tensor) -> None:
    """q [out, ...] int8, scale [out] -> ``out``, float32."""
    torch.mul(q, scale.view(-1, *[1] * (q.ndim - 1)), out=out)
