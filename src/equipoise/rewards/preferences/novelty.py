"""A reward for exploring before there are answers: the distance to the nearest states so far."""

from __future__ import annotations

import math

import torch
from torch import Tensor

NEIGHBOUR = 5  # the distance to this nearest state
KNOWN = 1024  # states that a state is compared with
WIDE = 256  # numbers of a state from which it is projected at random


def projection(size: int, seed: int) -> Tensor | None:
    """Return a random projection [F, 64] of states with many numbers; None if they have few."""
    if size <= WIDE:
        return None
    generator = torch.Generator().manual_seed(seed)
    found: Tensor = torch.randn(size, 64, generator=generator) / math.sqrt(size)
    return found


def novelty(states: Tensor, known: Tensor, mask: Tensor) -> Tensor:
    """Return the log of the distance to the fifth nearest of ``known`` [N, F], for ``states``
    [..., F]: an estimate of the entropy of states (Lee et al. 2021, arXiv:2106.05091, section 4.1).

    The result has mean 0 and deviation 1 over the rows of ``mask``, like a fitted reward.
    """
    if len(known) < NEIGHBOUR:
        return states.new_zeros(states.shape[:-1])
    mean, std = known.mean(0), known.std(0, correction=0).clamp(min=1e-6)
    whitened = (states.flatten(0, -2) - mean) / std
    distance = torch.cdist(whitened, (known - mean) / std)
    found = distance.kthvalue(NEIGHBOUR, -1).values.log1p().view(states.shape[:-1])
    seen = found[mask]
    if len(seen) < 2:
        return torch.zeros_like(found)
    result: Tensor = (found - seen.mean()) / seen.std().clamp(min=1e-6)
    return result
