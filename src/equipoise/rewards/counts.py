"""Counts: a bonus for observations that came rarely so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from gymnasium import spaces
from torch import Tensor

from equipoise.facts import KEPT, Help, Range
from equipoise.rewards.observed import Observed, reached, sizes
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
        self._observed = Observed(spec)
        self._sizes = sizes(self._observed.space, EXACT)
        rng = torch.Generator().manual_seed(seed)
        if self._sizes is None:
            self._shift, scale = _bounds(self._observed)
            self._projection = torch.randn(self._observed.size, self.bits, generator=rng)
            self._projection *= scale[:, None]
            self._powers = 2 ** torch.arange(self.bits)
            values = 1 << self.bits
        else:
            values = max(int(torch.tensor(self._sizes).prod()), 1)
        self.counts = torch.zeros(values, dtype=torch.int64)

    def to(self, device: torch.device) -> None:
        self.counts = self.counts.to(device)
        if self._sizes is None:
            self._shift, self._projection = self._shift.to(device), self._projection.to(device)
            self._powers = self._powers.to(device)

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
        if self._sizes is None:
            rows = self._observed.rows(data.obs)[1:] - self._shift
            found: Tensor = ((rows @ self._projection > 0) * self._powers).sum(-1)
            return found
        space, obs = self._observed.space, self._observed.leaf(data.obs)[1:]
        flat = obs.reshape(*data.shape, -1).long()
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            flat = flat - torch.as_tensor(space.start, device=flat.device).reshape(-1)
        total = torch.zeros(data.shape, dtype=torch.int64, device=flat.device)
        for column, size in enumerate(self._sizes):
            total = total * size + flat[..., column].clamp(0, size - 1)
        return total


def _bounds(observed: Observed) -> tuple[Tensor, Tensor]:
    """Return the middle and the inverse of the half width of each number of a bounded Box, so that
    zero lies within its values; 0 and 1 for other numbers.
    """
    shift, scale = torch.zeros(observed.size), torch.ones(observed.size)
    space = observed.space
    if isinstance(space, spaces.Box) and observed.size:
        edges = torch.stack(
            [torch.as_tensor(edge).unsqueeze(0) for edge in (space.low, space.high)]
        )
        low, high = observed.rows(edges).reshape(2, -1)
        bounded = (high - low).isfinite() & (high > low) & (high - low < 1e6)
        shift = torch.where(bounded, (low + high) / 2, shift)
        scale = torch.where(bounded, 2 / (high - low), scale)
    return shift, scale
