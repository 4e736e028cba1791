"""Running statistics as buffers, which are saved and published with the weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from equipoise.types import Pool

EPSILON = 1e-8  # on the variance, as in VecNormalize and CleanRL


class RunningNorm(nn.Module):
    """Normalise features [..., F] by the mean and standard deviation of all real rows so far, and
    clip to ±``clip``.

        y = clip((x - mean) / sqrt(var + 1e-8))

    as in Stable-Baselines3's VecNormalize and CleanRL; the variance is that of the population.
    Before the first row is absorbed y is x, clipped. ``columns`` [F] selects the features that are
    normalised (default: all); other features pass unchanged.

    The statistics are float64; ``shift`` and ``factor`` are what ``forward`` needs of them, in
    float32, so that acting costs three small operations. Only ``absorb`` changes anything: using
    the network never does.
    """

    count: Tensor
    mean: Tensor
    m2: Tensor
    shift: Tensor
    factor: Tensor
    columns: Tensor

    def __init__(
        self, size: int, *, clip: float = 10.0, columns: Sequence[bool] | None = None
    ) -> None:
        super().__init__()
        if not clip > 0:
            raise ValueError(f"clip: expected more than 0 standard deviations, got {clip}")
        if columns is not None and len(columns) != size:
            raise ValueError(f"columns: expected {size} of them, one a feature, got {len(columns)}")
        self.clip = clip
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))  # rows
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        # sum of squared distances to the mean
        self.register_buffer("m2", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(size))
        self.register_buffer("factor", torch.ones(size))
        self.register_buffer(
            "columns",
            torch.ones(size, dtype=torch.bool) if columns is None else torch.tensor(columns),
        )

    def forward(self, x: Tensor) -> Tensor:
        """x [..., F] float32 -> the same shape, new memory."""
        return (x - self.shift).mul_(self.factor).clamp_(-self.clip, self.clip)

    def scale(self, x: Tensor) -> Tensor:
        """Divide by the standard deviation without centring, as rewards are scaled."""
        return (x * self.factor).clamp_(-self.clip, self.clip)

    @torch.no_grad()
    def absorb(self, rows: Tensor, mask: Tensor, pool: Pool) -> None:
        """Merge rows [..., F] where ``mask`` [...] is True and every feature finite, and the rows
        of the pool's other learners.

        The mean and m2 of the batch in two passes, then Chan, Golub and LeVeque 1979, "Updating
        formulae and a pairwise algorithm for computing sample variances", Eq. (2.1): nothing
        cancels, however large the mean or the count.
        """
        rows, mask = rows.detach().flatten(0, -2).double(), mask.flatten()
        real = (mask & rows.isfinite().all(-1)).unsqueeze(-1)
        n, total = pool.sum(real.sum()), pool.sum(torch.where(real, rows, 0.0).sum(0))
        mean = total / n.clamp(min=1)
        m2 = pool.sum(torch.where(real, rows - mean, 0.0).square_().sum(0))
        count = self.count + n
        share = n / count.clamp(min=1)
        delta = mean - self.mean
        self.m2 += m2 + delta.square() * (self.count * share)
        self.mean += delta * share
        self.count.copy_(count)
        std = (self.m2 / count.clamp(min=1) + EPSILON).sqrt()
        known = self.columns & (count > 0)
        self.shift.copy_(torch.where(known, self.mean, 0.0))
        self.factor.copy_(torch.where(known, std.reciprocal(), 1.0))
