"""CNNs for images, and how an image of any layout becomes [N, C, H, W].

Which axis holds the channels is decided by the shape alone (``planes``): two sides of one length
are height and width, else the shorter of the first and the last axis holds them, of two that are
equal the first. So a stack [4, 84, 84] is four channels, and an image [7, 7, 3] three. [H, W] is
one channel, and [S, H, W, C] a stack of S images with their channels last: S * C channels.

Bytes stay bytes until the first convolution: their scale, one over the highest of their space (255
of a screen, 1 of one-hots), is folded into its weights each time they are used, and they become
floats (bf16 under autocast, which holds 0 to 255 exactly) in the layout that it wants, channels
last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.nets.torso import linear

SMALLEST = 36  # sides: below it the Nature CNN's strides leave nothing


def planes(shape: Sequence[int]) -> tuple[int, int, int]:
    """(channels, height, width) of an image of this shape; ValueError if it is no image."""
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    if len(shape) == 3:
        return (
            (shape[2], shape[0], shape[1])
            if channels_last(shape)
            else (shape[0], shape[1], shape[2])
        )
    if len(shape) == 4:
        return shape[0] * shape[3], shape[1], shape[2]
    raise ValueError(
        f"expected an image [H, W], [C, H, W], [H, W, C] or [S, H, W, C], got shape {tuple(shape)}"
    )


def channels_last(shape: Sequence[int]) -> bool:
    """Does the last axis of an image of rank 3 hold the channels? See the file's docstring."""
    if shape[0] == shape[1] or shape[1] == shape[2]:
        return shape[0] == shape[1] != shape[2]
    return shape[2] < shape[0]


def to_planes(x: Tensor) -> Tensor:
    """Images [N, ...] in any layout -> [N, C, H, W], a view except for [N, S, H, W, C]."""
    if x.ndim == 3:
        return x.unsqueeze(1)
    if x.ndim == 4:
        return x.permute(0, 3, 1, 2) if channels_last(x.shape[1:]) else x
    return x.permute(0, 2, 3, 1, 4).flatten(3).permute(0, 3, 1, 2)


def conv(
    channels_in: int, channels: int, kernel: int, stride: int = 1, padding: int = 0
) -> nn.Conv2d:
    """Orthogonal weight with gain sqrt(2), bias 0 (CleanRL; Huang et al. 2022, "The 37
    implementation details of PPO", 2).
    """
    layer = nn.Conv2d(channels_in, channels, kernel, stride, padding)
    nn.init.orthogonal_(layer.weight, math.sqrt(2))
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


def first_conv(layer: nn.Conv2d, x: Tensor, scale: float) -> Tensor:
    """Apply ``layer`` to images [N, C, H, W]; integers are multiplied by ``scale``."""
    weight = layer.weight if x.is_floating_point() else layer.weight * scale
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    # Bytes are moved before they become floats: with bf16 that takes 0.6 of the time of both at
    # once.
    x = x.contiguous(memory_format=torch.channels_last).to(dtype)
    return F.conv2d(x, weight, layer.bias, layer.stride, layer.padding)


def flat(x: Tensor) -> Tensor:
    """[N, C, H, W] -> [N, H * W * C]: no copy if the channels are last in memory."""
    return x.permute(0, 2, 3, 1).flatten(1)


class Nature(nn.Module):
    """Mnih et al. 2015 (doi:10.1038/nature14236): convolutions 32 8x8/4, 64 4x4/2, 64 3x3/1 and 512
    units, all ReLU.
    """

    def __init__(self, shape: Sequence[int], *, scale: float = 1 / 255) -> None:
        super().__init__()
        self.scale = scale
        channels, height, width = planes(shape)
        if min(height, width) < SMALLEST:
            raise ValueError(
                f"torso 'nature' needs sides of {SMALLEST} and more, got {height}x{width}; take "
                "resnet or mlp"
            )
        self.layers = nn.ModuleList([conv(channels, 32, 8, 4), conv(32, 64, 4, 2), conv(64, 64, 3)])
        sides = [((side - 8) // 4 + 1 - 4) // 2 + 1 - 2 for side in (height, width)]
        self.size_out = 512
        self.out = linear(64 * math.prod(sides), self.size_out, math.sqrt(2))

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = self.layers
        x = torch.relu_(first_conv(first, to_planes(x), self.scale))  # type: ignore[arg-type]
        for layer in rest:
            x = torch.relu_(layer(x))
        return torch.relu_(self.out(flat(x)))


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x)))), 3x3."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one = conv(channels, channels, 3, padding=1)
        self.two = conv(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.two(torch.relu_(self.one(torch.relu(x))))
        return x + y


class ResNet(nn.Module):
    """Espeholt et al. 2018 (arXiv:1802.01561), figure 3 right: sections of 16, 32, 32 channels,
    each a 3x3 convolution, a 3x3/2 maximum and two residual blocks; then ReLU and 256 units with
    ReLU.
    """

    def __init__(
        self,
        shape: Sequence[int],
        sections: Sequence[int] = (16, 32, 32),
        *,
        scale: float = 1 / 255,
    ) -> None:
        super().__init__()
        self.scale = scale
        channels, height, width = planes(shape)
        self.convs, self.blocks = nn.ModuleList(), nn.ModuleList()
        for size in sections:
            self.convs.append(conv(channels, size, 3, padding=1))
            self.blocks.append(nn.Sequential(Residual(size), Residual(size)))
            channels, height, width = size, (height + 1) // 2, (width + 1) // 2
        self.size_out = 256
        self.out = linear(channels * height * width, self.size_out, math.sqrt(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.planes(to_planes(x))

    def planes(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, size_out]."""
        for n, (layer, blocks) in enumerate(zip(self.convs, self.blocks, strict=True)):
            x = first_conv(layer, x, self.scale) if n == 0 else layer(x)  # type: ignore[arg-type]
            x = blocks(F.max_pool2d(x, 3, 2, 1))
        return torch.relu_(self.out(flat(torch.relu(x))))
