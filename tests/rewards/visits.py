"""A term of the rewards in one file, as a user writes it: a bonus for rare observations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from equipoise.facts import KEPT, Help, Range
from equipoise.rewards.term import RewardTerm
from equipoise.types import EnvSpec, Pool, Trajectory, Tree


@dataclass(kw_only=True, eq=False)
class Visits(RewardTerm):
    """``1 / sqrt(n)`` for an observation whose hash came n times so far."""

    name: ClassVar[str] = "visits"
    bits: Annotated[int, Range(1, 20), Help("Bits of the hash"), KEPT] = 6

    def build(self, spec: EnvSpec, seed: int) -> None:
        assert spec.observation.shape is not None
        self._projection = torch.randn(spec.observation.shape[0], self.bits)
        self._powers = 2 ** torch.arange(self.bits)
        self.counts = torch.zeros(2**self.bits, dtype=torch.int64)

    def rewards(self, data: Trajectory) -> Tensor:
        seen = self.counts[self._hashes(data)].clamp(min=1)
        return seen.float().rsqrt()

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
