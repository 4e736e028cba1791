"""A spatial transformer: the network chooses the part of the image that it sees."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.nets.cnn import ResNet, conv, first_conv, planes, to_planes
from equipoise.nets.torso import linear

GRID = 4  # the localisation network sees means over this number of parts of each side


class SpatialTransformer(nn.Module):
    """Jaderberg et al. 2015 (arXiv:1506.02025), section 3, before the ResNet of ``cnn``.

    A small CNN computes six numbers A for each image; the pixel at (x, y), both from -1 to 1, is
    then what the image has at A (x, y, 1), bilinear, 0 outside. At first A is the identity,
    whatever the image.
    """

    def __init__(self, shape: Sequence[int], *, scale: float = 1 / 255) -> None:
        super().__init__()
        self.scale = scale
        channels, height, width = planes(shape)
        self.localise = nn.ModuleList([conv(channels, 16, 5, 2, 2), conv(16, 32, 3, 2, 1)])
        self.hidden, self.affine = linear(32 * GRID * GRID, 64, math.sqrt(2)), linear(64, 6, 0.0)
        self.affine.bias.data.copy_(torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 0.0]))
        self.resnet = ResNet((channels, height, width), scale=1.0)
        self.size_out = self.resnet.size_out

    def forward(self, x: Tensor) -> Tensor:
        x = to_planes(x)
        first, second = self.localise
        y = torch.relu_(second(torch.relu_(first_conv(first, x, self.scale))))  # type: ignore[arg-type]
        y = torch.relu_(self.hidden(F.adaptive_avg_pool2d(y, GRID).flatten(1)))
        with torch.autocast(x.device.type, enabled=False):  # bfloat16 would move pixels
            affine = self.affine(y.float()).view(-1, 2, 3)
            image = x.float() if x.is_floating_point() else x.float() * self.scale
            seen = F.grid_sample(
                image,
                F.affine_grid(affine, list(image.shape), align_corners=False),
                align_corners=False,
            )
        return self.resnet.planes(seen)
