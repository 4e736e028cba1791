"""Observations as numbers that can be counted: exact ones of small discrete spaces, else hashes."""

from __future__ import annotations

import torch
from gymnasium import spaces
from torch import Tensor

from equipoise import tree
from equipoise.rewards.observed import Observed, sizes
from equipoise.types import EnvSpec, Tree


class Hashes:
    """Numbers of observations, from 0 to ``count - 1``.

    Discrete observations with at most ``exact`` values have their own. Others have a hash of
    ``bits`` bits: the signs of random projections, which near observations share (SimHash: Tang et
    al. 2017, arXiv:1611.04717, section 2.2). With ``mixed`` it is a hash of all numbers of whole
    numbers, which only equal observations share, apart from collisions.
    """

    def __init__(
        self, spec: EnvSpec, bits: int, seed: int, *, exact: int, mixed: bool = False
    ) -> None:
        self._observed = Observed(spec)
        self._sizes = sizes(self._observed.space, exact)
        self._mixed = mixed and whole(self._observed.space)
        self._bits, size = bits, self._observed.size
        rng = torch.Generator().manual_seed(seed)
        self.count = 1 << bits
        if self._sizes is not None:
            self.count = max(int(torch.tensor(self._sizes).prod()), 1)
        elif self._mixed:
            self._factors = torch.randint(1 << 62, (size,), generator=rng) * 2 + 1
        else:
            self._shift, scale = _bounds(self._observed)
            self._projection = torch.randn(size, bits, generator=rng) * scale[:, None]
            self._powers = 2 ** torch.arange(bits)

    def to(self, device: torch.device) -> None:
        if self._sizes is not None:
            return
        if self._mixed:
            self._factors = self._factors.to(device)
            return
        self._shift, self._projection = self._shift.to(device), self._projection.to(device)
        self._powers = self._powers.to(device)

    def __call__(self, obs: Tree) -> Tensor:
        """Return the numbers [T, B] of observations [T, B, ...]."""
        if self._sizes is not None:
            return self._exact(obs, self._sizes)
        if self._mixed:
            return torch.stack([self._mix(row) for row in self._observed.rows(obs)])
        rows = self._observed.rows(obs) - self._shift
        found: Tensor = ((rows @ self._projection > 0) * self._powers).sum(-1)
        return found

    def _mix(self, rows: Tensor) -> Tensor:
        """Return [B] the hash of rows [B, F]: multiply-add in whole numbers modulo 2^64, of which
        the high bits are kept (Dietzfelbinger 1996).
        """
        bits = (rows + 0.0).view(torch.int32).long()  # + 0.0: no negative zero
        total = (bits * self._factors).sum(-1)
        return (total ^ (total >> 31)) * MIX >> (64 - self._bits) & ((1 << self._bits) - 1)

    def _exact(self, obs: Tree, several: list[int]) -> Tensor:
        space, leaf = self._observed.space, self._observed.leaf(obs)
        flat = leaf.reshape(*leaf.shape[:2], -1).long()
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            flat = flat - torch.as_tensor(space.start, device=flat.device).reshape(-1)
        total = torch.zeros(flat.shape[:2], dtype=torch.int64, device=flat.device)
        for column, size in enumerate(several):
            total = total * size + flat[..., column].clamp(0, size - 1)
        return total


MIX = 0x369DEA0F31A53F85  # odd


def whole(space: spaces.Space[object]) -> bool:
    """Are all numbers of an observation whole?"""
    if (inner := tree.branches(space)) is not None:
        return all(whole(one) for one in inner.values())
    return not isinstance(space, spaces.Box) or space.dtype.kind in "iub"


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
