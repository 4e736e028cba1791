"""A part of the rewards in one file: a bonus for rare observations, by hashed counts."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from equipoise.rewards.part import RewardPart
from equipoise.types import Pool, Trajectory, Tree


class Counts(RewardPart):
    """Add ``scale / sqrt(n)`` for an observation whose hash came n times so far, in batches that
    were learned from.

    The hash is the signs of random projections (SimHash: Tang et al. 2017, arXiv:1611.04717,
    section 2.2).
    """

    name: ClassVar[str] = "counts"

    def __init__(self, size: int = 3, *, bits: int = 6, scale: float = 0.5) -> None:
        self._projection = torch.randn(size, bits, generator=torch.Generator().manual_seed(0))
        self._powers = 2 ** torch.arange(bits)
        self._scale = scale
        self.counts = torch.zeros(2**bits, dtype=torch.int64)

    def to(self, device: torch.device) -> None:
        self._projection, self._powers = self._projection.to(device), self._powers.to(device)
        self.counts = self.counts.to(device)

    def rewards(self, data: Trajectory) -> Tensor:
        seen = self.counts[self._hashes(data)].clamp(min=1)
        bonus: Tensor = data.reward + self._scale * seen.float().rsqrt() * data.mask
        return bonus

    def absorb(self, data: Trajectory, pool: Pool) -> None:
        self.counts += pool.sum(
            torch.bincount(self._hashes(data)[data.mask], minlength=len(self.counts))
        )

    def state(self) -> Tree:
        return {"counts": self.counts}

    def load(self, state: Tree) -> None:
        self.counts.copy_(dict(state)["counts"])

    def _hashes(self, data: Trajectory) -> Tensor:
        """Return [T, B], the number of the observation that each row's action led to."""
        hashes: Tensor = ((data.obs[1:] @ self._projection > 0) * self._powers).sum(-1)
        return hashes
