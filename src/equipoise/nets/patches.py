"""Torsos with attention over an image's patches: ViT, and latents that read patches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.nets.block import Block
from equipoise.nets.cnn import conv, first_conv, planes, to_planes
from equipoise.nets.torso import linear

WIDER = 4  # units of a block's MLP, times its width


def dense(size_in: int, size_out: int) -> nn.Linear:
    """A layer with Glorot's weights, as in ViT's code. Orthogonal ones take half a minute."""
    layer = nn.Linear(size_in, size_out)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class Patches(nn.Module):
    """An image as tokens: square patches, mapped linearly, plus a learned vector for each place
    (ViT, equation 1).

    Sides that the patch does not divide are padded with zeros on the right and at the bottom.
    """

    def __init__(self, shape: Sequence[int], width: int, patch: int, scale: float) -> None:
        super().__init__()
        self.scale, self.patch = scale, patch
        channels, height, width_px = planes(shape)
        self.rest = (-width_px) % patch, (-height) % patch
        self.count = math.ceil(height / patch) * math.ceil(width_px / patch)
        self.embed = conv(channels, width, patch, patch)
        self.place = nn.Parameter(torch.randn(self.count, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        """[N, *shape] -> [N, count, width]."""
        x = to_planes(x)
        if any(self.rest):
            x = F.pad(x, (0, self.rest[0], 0, self.rest[1]))
        return first_conv(self.embed, x, self.scale).flatten(2).transpose(1, 2) + self.place


class Attention(Block):
    """Multi-head attention (Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2) and an MLP:
    behind a norm each, and added.
    """

    pairs = (("wide", "narrow"),)

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query = dense(width, width)
        self.key_value = dense(width, 2 * width)
        self.out = dense(width, width)
        self.wide, self.narrow = dense(width, WIDER * width), dense(WIDER * width, width)

    def forward(self, x: Tensor, read: Tensor | None = None) -> Tensor:
        """x [N, L, width] attends to itself, or to ``read`` [N, M, width], normalised before."""
        normal = self.norm(x)
        key, value = self.key_value(normal if read is None else read).chunk(2, -1)
        query, key, value = (
            one.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for one in (self.query(normal), key, value)
        )
        x = x + self.out(
            F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        )
        return x + self.narrow(F.gelu(self.wide(self.norm_mlp(x))))  # type: ignore[no-any-return]


class ViT(nn.Module):
    """A vision transformer (Dosovitskiy et al. 2021, arXiv:2010.11929): patches and a class token
    through ``layers`` blocks of self-attention; the class token, normalised, then 256 units with
    ReLU. The defaults are about as large as the ResNet here; patches of 16, 12 layers of 384 and 6
    heads are ViT-small (Touvron et al. 2021, arXiv:2012.12877, table 1).
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        patch: int = 8,
        width: int = 128,
        layers: int = 3,
        heads: int = 4,
        scale: float = 1 / 255,
    ) -> None:
        super().__init__()
        self.patches = Patches(shape, width, patch, scale)
        self.summary = nn.Parameter(torch.randn(1, width) * 0.02)
        self.blocks = nn.ModuleList(Attention(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.size_out = 256
        self.out = linear(width, self.size_out, math.sqrt(2))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x)
        tokens = torch.cat([self.summary.to(tokens.dtype).expand(len(tokens), -1, -1), tokens], 1)
        for block in self.blocks:
            tokens = block(tokens)
        return torch.relu_(self.out(self.norm(tokens[:, 0])))


class CrossAttention(nn.Module):
    """Latents that read an image (Perceiver: Jaegle et al. 2021, arXiv:2103.03206, section 3):
    ``latents`` learned vectors attend to the patches, then ``layers`` times to each other; then 256
    units with ReLU over all of them.

    The cost is that of ``latents`` times patches, so that small patches, and large images, stay
    affordable.
    """

    def __init__(
        self,
        shape: Sequence[int],
        *,
        patch: int = 4,
        width: int = 128,
        latents: int = 16,
        layers: int = 2,
        heads: int = 4,
        scale: float = 1 / 255,
    ) -> None:
        super().__init__()
        self.patches = Patches(shape, width, patch, scale)
        self.latents = nn.Parameter(torch.randn(latents, width) * 0.02)
        self.norm_patches, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.read = Attention(width, heads)
        self.blocks = nn.ModuleList(Attention(width, heads) for _ in range(layers))
        self.size_out = 256
        self.out = linear(latents * width, self.size_out, math.sqrt(2))

    def forward(self, x: Tensor) -> Tensor:
        patches = self.norm_patches(self.patches(x))
        latents = self.read(self.latents.to(patches.dtype).expand(len(patches), -1, -1), patches)
        for block in self.blocks:
            latents = block(latents)
        return torch.relu_(self.out(self.norm(latents).flatten(1)))
