"""Observations as the terms of a sum of rewards see them: rows of numbers, and networks on them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from gymnasium import spaces
from torch import Tensor, nn

from equipoise.nets import heads
from equipoise.nets.cnn import Nature
from equipoise.nets.torso import MLP, encode, encoded_size, linear
from equipoise.nets.vision import is_screen
from equipoise.types import EnvSpec, Trajectory, Tree


class Observed:
    """The observations of a policy, without the mask of its actions."""

    def __init__(self, spec: EnvSpec) -> None:
        self.space, self._keys = heads.seen(spec)
        self.size = encoded_size(self.space)

    def rows(self, obs: Tree) -> Tensor:
        """Return observations [..., F] as float32: images scaled to 0 .. 1, discrete ones as
        one-hots.
        """
        return encode(self.space, self.leaf(obs))

    def leaf(self, obs: Tree) -> Tree:
        """Return the observations without the mask of actions."""
        return heads.at(obs, self._keys)

    def network(self, hidden: Sequence[int], out: int) -> nn.Module:
        """Make a network from rows [..., F] to [..., ``out``]: a CNN before the hidden layers if
        the observation is one image.
        """
        if is_screen(self.space):
            assert isinstance(self.space, spaces.Box)
            return OnImages(self.space.shape, hidden, out)
        mlp = MLP(self.size, hidden, "relu")
        return nn.Sequential(mlp, linear(mlp.size_out, out, 1.0))


class OnImages(nn.Module):
    """A CNN on rows that are flat images."""

    def __init__(self, shape: Sequence[int], hidden: Sequence[int], out: int) -> None:
        super().__init__()
        self.shape, self.cnn = tuple(shape), Nature(shape, scale=1.0)
        self.mlp = MLP(self.cnn.size_out, hidden, "relu")
        self.last = linear(self.mlp.size_out, out, 1.0)

    def forward(self, rows: Tensor) -> Tensor:
        flat = self.cnn(rows.reshape(-1, *self.shape)).float()
        found: Tensor = self.last(self.mlp(flat)).view(*rows.shape[:-1], -1)
        return found


def reached(data: Trajectory) -> Tensor:
    """Return [T, B] bool: did the row's action lead to ``obs[t + 1]``? Not at a seam, nor if that
    begins the next episode already.
    """
    found: Tensor = data.mask & ~data.first[1:]
    return found


def some_rows(data: Trajectory, share: float, seed: int) -> Tensor:
    """Return [T, B] bool: a share of the rows, drawn by their places in their streams, so that it
    does not depend on how many learners there are.
    """
    rows = torch.arange(data.shape[0], device=data.reward.device)[:, None]
    place = data.context["start"] + rows
    mixed = place * 0x9E3779B1 + data.context["stream"] * 0x85EBCA77 + seed % (1 << 31)
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39)):  # of lowbias32, C. Wellons
        mixed = ((mixed & MASK) ^ ((mixed & MASK) >> shift)) * factor
    drawn = ((mixed & MASK) ^ ((mixed & MASK) >> 15)).double() / (MASK + 1)
    found: Tensor = data.mask & (drawn < share)
    return found


MASK = 0xFFFFFFFF


def sizes(space: spaces.Space[object], most: int) -> list[int] | None:
    """Return the number of values of each discrete number of an observation, if all its numbers are
    discrete and it has at most ``most`` values; else None.
    """
    if isinstance(space, spaces.Discrete):
        found = [int(space.n)]
    elif isinstance(space, spaces.MultiDiscrete):
        found = [int(n) for n in space.nvec.ravel()]
    elif isinstance(space, spaces.MultiBinary):
        found = [2] * math.prod(space.shape)
    else:
        return None
    return found if math.prod(found) <= most else None
