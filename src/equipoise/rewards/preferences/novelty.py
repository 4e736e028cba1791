"""A reward for exploring before there are answers: the distance to the nearest states so far."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

NEIGHBOUR = 5  # the distance to this nearest state
MOST_SEEN = 1024  # states that a state is compared with
LEAST_SPREAD = 0.1  # least deviation of novelty, where nearly all states are alike
MOST_NUMBERS = 256  # numbers of a state from which it is projected at random


def projection(size: int, seed: int) -> Tensor | None:
    """Return a random projection [F, 64] of states with many numbers; None if they have few."""
    if size <= MOST_NUMBERS:
        return None
    generator = torch.Generator().manual_seed(seed)
    found: Tensor = torch.randn(size, 64, generator=generator) / math.sqrt(size)
    return found


@dataclass(frozen=True, slots=True)
class SeenStates:
    """States that novelty compares with, and the scale of their own novelty."""

    states: Tensor  # [N, F], whitened
    mean: Tensor  # [F], of the states as they were
    std: Tensor  # [F]
    centre: Tensor  # []: mean of the novelty of these states
    spread: Tensor  # []


def seen_states(states: Tensor) -> SeenStates | None:
    """Return states [N, F] to compare with; None if they are too few."""
    if len(states) <= NEIGHBOUR:
        return None
    mean, std = states.mean(0), states.std(0, correction=0).clamp(min=1e-6)
    whitened = (states - mean) / std
    own = _distance(whitened, whitened, NEIGHBOUR + 1)  # the nearest one is the state itself
    return SeenStates(whitened, mean, std, own.mean(), own.std().clamp(min=LEAST_SPREAD))


def novelty(states: Tensor, seen: SeenStates) -> Tensor:
    """Return the log of the distance to the fifth nearest of seen states, for ``states`` [..., F]:
    an estimate of the entropy of states (Lee et al. 2021, arXiv:2106.05091, section 4.1).

    The result has mean 0 and deviation 1 over the seen states, like a fitted reward.
    """
    whitened = (states.flatten(0, -2) - seen.mean) / seen.std
    found = (_distance(whitened, seen.states, NEIGHBOUR) - seen.centre) / seen.spread
    result: Tensor = found.view(states.shape[:-1])
    return result


def _distance(states: Tensor, others: Tensor, nearest: int) -> Tensor:
    """Return the log of 1 + the distance [N] to the ``nearest``-th of other states."""
    # by differences: equal states are exactly 0 apart, also where all seen ones are equal
    apart = torch.cdist(states, others, compute_mode="donot_use_mm_for_euclid_dist")
    found: Tensor = apart.kthvalue(nearest, -1).values.log1p()
    return found
