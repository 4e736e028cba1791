"""Batch renormalisation (Ioffe 2017, arXiv:1702.03275), and MLPs with it (CrossQ)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from equipoise.nets.activations import ACTIVATIONS
from equipoise.nets.torso import linear
from equipoise.nets.twin import TwinMLP, slope
from equipoise.types import Pool

# of sb3-contrib: on the variance, of the running statistics, in batches
EPSILON, MOMENTUM, WARM_UP = 1e-3, 0.01, 100_000
R_MAX, D_MAX = 3.0, 5.0  # Ioffe 2017, section 4


class BatchRenorm(nn.Module):
    """Normalise each feature of rows [N, F], or [members, N, F] if each member has statistics of
    its own.

        y = scale (x - mean) / sqrt(var + 1e-3) + bias

    by the running mean and variance, so that a row's y does not depend on the other rows: acting
    uses it. Within ``by_batch`` y is by the mean m and the deviation s of the batch itself, through
    which gradients flow,

        y = scale ((x - m) / s * r + d) + bias,  r = clip(s / std, 1/3, 3),  d = clip((m - mean) /
        std, -5, 5)

    (algorithm 1 there); r and d carry no gradient and are 1 and 0 in the first 100,000 batches. The
    moments of that batch are kept until ``absorb``, which moves the running ones 1 % of the way to
    them; nothing else changes a statistic. They are buffers, so that each version of the weights
    has its own, and they are published, saved and resumed with it.
    """

    mean: Tensor
    var: Tensor
    batches: Tensor

    def __init__(self, size: int, members: int = 0) -> None:
        super().__init__()
        shape = (members, 1, size) if members else (size,)
        self.scale, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self.by_batch = False
        # rows, mean and variance of the newest batch
        self._seen: tuple[int, Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        std = (self.var + EPSILON).sqrt()
        if not self.by_batch:
            return torch.addcmul(self.bias, x - self.mean, self.scale / std)
        var, mean = torch.var_mean(x, -2, correction=0, keepdim=self.mean.ndim > 1)
        self._seen = x.shape[-2], mean.detach(), var.detach()
        deviation = (var + EPSILON).sqrt()
        with torch.no_grad():
            warm = self.batches >= WARM_UP
            r = torch.where(warm, (deviation / std).clamp(1 / R_MAX, R_MAX), 1.0)
            d = torch.where(warm, ((mean - self.mean) / std).clamp(-D_MAX, D_MAX), 0.0)
        return torch.addcmul(
            torch.addcmul(self.bias, self.scale, d), x - mean, self.scale * r / deviation
        )

    @torch.no_grad()
    def absorb(self, pool: Pool) -> None:
        """Add the newest batch, and the other learners', to the running statistics."""
        if self._seen is None:
            return
        (rows, mean, var), self._seen = self._seen, None
        count = pool.sum(torch.full_like(mean, rows))
        whole = pool.sum(rows * mean) / count
        spread = pool.sum(rows * (var + (mean - whole).square())) / count
        self.mean.lerp_(whole, MOMENTUM)
        self.var.lerp_(spread, MOMENTUM)
        self.batches += 1


def norms(net: nn.Module) -> list[BatchRenorm]:
    return [module for module in net.modules() if isinstance(module, BatchRenorm)]


@contextmanager
def by_batch(net: nn.Module) -> Iterator[None]:
    """A context in which ``net`` normalises by the batch, whose moments it then keeps."""
    found = norms(net)
    for norm in found:
        norm.by_batch = True
    try:
        yield
    finally:
        for norm in found:
            norm.by_batch = False


class RenormMLP(nn.Module):
    """``MLP`` with a norm before each layer and one at the end: [N, size] -> [N, size_out]."""

    def __init__(self, size: int, hidden: Sequence[int], activation: str) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        sizes = (size, *hidden)
        self.norms = nn.ModuleList(map(BatchRenorm, sizes))
        self.layers = nn.ModuleList(
            linear(a, b, math.sqrt(2)) for a, b in zip(sizes[:-1], hidden, strict=True)
        )
        self.size_out = sizes[-1]

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](x)
        for layer, norm in zip(self.layers, self.norms[1:], strict=True):
            x = norm(self.activation(layer(x)))
        return x


class RenormTwins(TwinMLP):
    """``TwinMLP`` with a norm before each layer."""

    def __init__(
        self, size: int, hidden: Sequence[int], activation: str, outputs: int, *, members: int = 2
    ) -> None:
        super().__init__(size, hidden, activation, outputs, members=members)
        self.norms = nn.ModuleList(BatchRenorm(width, members) for width in (size, *hidden))

    def _hidden(self, x: Tensor, layers: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        activate = ACTIVATIONS[self.activation]
        seen = [self.norms[0](x.expand(self.members, *x.shape))]
        for (w, b), norm in zip(layers[:-1], self.norms[1:], strict=True):
            seen.append(norm(activate(torch.baddbmm(b, seen[-1], w))))
        return seen

    def least(
        self, x: Tensor, columns: int, *, members: int, select: bool
    ) -> tuple[Tensor, Tensor]:
        """As of ``TwinMLP``, by autograd."""
        return slope(
            lambda free: self(torch.cat([x[:, :-columns], free], -1))[:members].squeeze(-1).amin(0),
            x[:, -columns:],
        )
