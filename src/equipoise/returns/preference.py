"""The loss of preferences: Bradley-Terry, with ties, margins and wrong answers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def preference_loss(
    *,
    logit: Float[Tensor, "*S N"],
    share: Float[Tensor, " N"],
    weight: Float[Tensor, "... N"] | None = None,
    margin: Float[Tensor, " N"] | None = None,
    noise: float = 0.0,
) -> Float[Tensor, "*S"]:
    """Return the mean log loss of N answers, for each of the axes in front; it has a gradient.

    The model is that of Bradley and Terry (Christiano et al. 2017, arXiv:1706.03741, section
    2.2.3): the left one wins with a chance of ``sigmoid(logit)``.

    ``share``: the wanted share of the left one, 0 to 1; a tie is 0.5. ``weight``: of each answer,
    at least 0, the same for all axes in front or not; without any weight the loss is 0.
    ``margin``: how much better the preferred one must be (Touvron et al. 2023, arXiv:2307.09288,
    equation 2); ties ignore it. ``noise``: the share of answers that a coin gives.
    """
    if margin is not None:
        logit = logit - margin * (2 * share - 1)
    left, right = F.logsigmoid(logit), F.logsigmoid(-logit)
    if noise:
        left, right = ((1 - noise) * one.exp() + noise / 2 for one in (left, right))
        left, right = left.log(), right.log()
    loss = -(share * left + (1 - share) * right)
    if weight is None:
        return loss.mean(-1)
    return (weight * loss).sum(-1) / weight.sum(-1).clamp(min=torch.finfo(loss.dtype).tiny)
