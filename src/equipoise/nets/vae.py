"""A variational autoencoder of images (Kingma and Welling 2014, arXiv:1312.6114), whose latents a
replay keeps in their place.

The encoder is a part of the network: it makes latents of the images that a policy acts on, and
latents of a replay pass it as they are. No gradient of a policy's loss reaches it. The decoder is
only there for learning (``learners/encoding.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.nets.cnn import conv, first_conv, flat, planes, to_planes
from equipoise.nets.precision import exact
from equipoise.nets.torso import linear

LATENTS = 64  # numbers that stand for an image
CHANNELS = (16, 32, 64, 64)  # of convolutions 4x4/2
SMALLEST = 2 ** len(CHANNELS)  # sides
LEAST = 1e-5  # mean squared error of a pixel from 0 to 1, below which nothing is gained


class Encoder(nn.Module):
    """Convolutions 4x4/2 with ReLU, then latent means: images [N, *shape] -> [N, LATENTS]."""

    def __init__(self, shape: Sequence[int], *, scale: float = 1 / 255) -> None:
        super().__init__()
        self.scale, self.shape, self.size_out = scale, tuple(shape), LATENTS
        channels, height, width = planes(shape)
        if min(height, width) < SMALLEST:
            raise ValueError(
                f"torso 'vae' needs sides of {SMALLEST} and more, got {height}x{width}; take "
                "resnet or mlp"
            )
        self.sides = [(height, width)]
        self.layers = nn.ModuleList()
        for size in CHANNELS:
            self.layers.append(conv(channels, size, 4, 2, 1))
            channels, (height, width) = size, (side // 2 for side in self.sides[-1])
            self.sides.append((height, width))
        self.out = linear(channels * height * width, LATENTS, 1.0)
        self.requires_grad_(False)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Images, or latents [N, ``LATENTS``], which pass. Always float32, for every reader."""
        if x.ndim == 2:
            return x.float()
        with exact(x.device):
            return self.out(self.seen(x))  # type: ignore[no-any-return]

    def seen(self, x: Tensor) -> Tensor:
        """Images [N, *shape] -> what the mean and the spread of the latents are made from."""
        first, *rest = self.layers
        x = torch.relu(first_conv(first, to_planes(x), self.scale))  # type: ignore[arg-type]
        for layer in rest:
            x = torch.relu(layer(x))
        return flat(x)


class Decoder(nn.Module):
    """From latents back to images; and the spread of the latents, which only learning asks for."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        size = encoder.out.in_features
        self.spread = linear(size, LATENTS, 0.1)  # log of the variance
        self.into = linear(LATENTS, size, math.sqrt(2))
        channels, self._corner = planes(encoder.shape)[0], (CHANNELS[-1], *encoder.sides[-1])
        self.layers = nn.ModuleList()
        for size_in, size_out, sides in zip(
            reversed(CHANNELS),
            (*reversed(CHANNELS[:-1]), channels),
            reversed(encoder.sides[:-1]),
            strict=True,
        ):
            odd = (sides[0] % 2, sides[1] % 2)
            self.layers.append(nn.ConvTranspose2d(size_in, size_out, 4, 2, 1, output_padding=odd))

    def forward(self, z: Tensor) -> Tensor:
        """[N, ``LATENTS``] -> [N, C, H, W]."""
        x = torch.relu(self.into(z)).view(-1, *self._corner)
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)  # type: ignore[no-any-return]


class Autoencoder(nn.Module):
    """The two as one, for learning: ``forward`` is the loss of images [N, *shape]."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, Decoder(encoder)

    def forward(self, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of an image, in nats, and the mean squared error of a pixel from 0 to 1.

            L = D/2 log(MSE) + KL(N(m, s^2) || N(0, 1))

        for images of D numbers: the variance of a pixel is that which fits best (Rybkin et al.
        2021, arXiv:2006.13202, Eq. 10), so that no weight stands between the two. ``noise`` [N,
        ``LATENTS``] is standard normal.
        """
        encoder, decoder = self.encoder, self.decoder
        seen = encoder.seen(images)
        mean, spread = encoder.out(seen), decoder.spread(seen)
        wanted = to_planes(images).float()
        if not images.is_floating_point():
            wanted = wanted * encoder.scale
        error = F.mse_loss(decoder(mean + noise * (0.5 * spread).exp()), wanted)
        divergence = 0.5 * (mean.square() + spread.exp() - 1 - spread).sum(1).mean()
        return 0.5 * wanted[0].numel() * error.clamp(min=LEAST).log() + divergence, error
