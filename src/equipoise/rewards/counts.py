"""Counts: a bonus for observations that came rarely so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from equipoise.facts import KEPT, Help, Range
from equipoise.rewards.hashes import Hashes
from equipoise.rewards.observed import reached
from equipoise.rewards.term import RewardTerm
from equipoise.types import EnvSpec, Pool, Trajectory, Tree

EXACT = 1 << 20  # observations with at most this many values are counted by value


@dataclass(kw_only=True, eq=False)
class Counts(RewardTerm):
    """``1 / sqrt(n)`` for an observation that an action led to n times so far (Strehl and Littman
    2008, "An analysis of model-based interval estimation", MBIE-EB).

    Discrete observations with few values are counted as they are. Others by a hash: the signs of
    ``bits`` random projections (SimHash: Tang et al. 2017, arXiv:1611.04717, section 2.2). The
    counts are those of all learners, up to the batch before; a new observation counts as the first.
    """

    name: ClassVar[str] = "counts"

    bits: Annotated[
        int,
        Range(1, 24),
        Help(
            "Bits of the hash of an observation",
            "More bits tell more observations apart. Discrete observations with at most 2^20 "
            "values have no hash.",
        ),
        KEPT,
    ] = 16

    def build(self, spec: EnvSpec, seed: int) -> None:
        self._hashes = Hashes(spec, self.bits, seed, exact=EXACT)
        self.counts = torch.zeros(self._hashes.count, dtype=torch.int64)

    def to(self, device: torch.device) -> None:
        self.counts = self.counts.to(device)
        self._hashes.to(device)

    def rewards(self, data: Trajectory) -> Tensor:
        seen = self.counts[self._values(data)].clamp(min=1)
        bonus: Tensor = seen.float().rsqrt() * reached(data)
        return bonus

    def absorb(self, data: Trajectory, pool: Pool) -> None:
        values = self._values(data)[reached(data)]
        self.counts += pool.sum(torch.bincount(values, minlength=len(self.counts)))

    def state(self) -> Tree:
        return {"counts": self.counts}

    def load(self, state: Tree) -> None:
        self.counts.copy_(state["counts"])

    def _values(self, data: Trajectory) -> Tensor:
        """Return [T, B], the number of the observation that each row's action led to."""
        return self._hashes(data.obs)[1:]
