"""Demonstrations as answers: their segments are preferred to the policy's (Ibarz et al. 2018,
arXiv:1811.06521, section 2.2).
"""

from __future__ import annotations

import numpy as np
import torch

from equipoise.rewards.preferences.queries import random_pairs
from equipoise.rewards.preferences.segments import Answers


def demonstration_answers(
    demonstration: np.ndarray,
    side: np.ndarray,
    *,
    count: int,
    seed: int,
    weight: float = 1.0,
    policy: np.ndarray | None = None,
) -> Answers:
    """Return at most ``count`` answers that prefer a segment of a demonstration to one of a policy.

    ``demonstration`` [S] bool: which segments are demonstrated. ``policy`` [S] bool: the segments
    to compare with; None is all others. Give early versions' segments: the better a policy becomes,
    the more of these answers are wrong. ``side``: as of ``random_pairs``. ``weight``: of each
    answer; a person's answer has 1.
    """
    others = ~demonstration if policy is None else policy & ~demonstration
    pairs = torch.from_numpy(random_pairs(count, side, seed=seed, left=demonstration, right=others))
    left, right = pairs[:, 0].contiguous(), pairs[:, 1].contiguous()
    share = torch.from_numpy(demonstration)[left].float()
    return Answers(left, right, share, torch.full_like(share, weight))
