"""Learned features of observations, which tell which action led from one to the next."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from equipoise.nets.heads import head
from equipoise.nets.normalize import RunningNorm
from equipoise.nets.torso import MLP, columns, encode, encoded_size, linear
from equipoise.rewards.observed import Observed
from equipoise.types import EnvSpec, Pool, Tree

CLIP = 5.0  # of whitened observations, in deviations
WIDE = 1024  # numbers of an observation from which its statistics take a part of the rows


class Features(nn.Module):
    """An encoder of observations, and an inverse model that tells the action between two of them
    (Pathak et al. 2017, arXiv:1705.05363, section 2.2).

    Observations are whitened by running statistics and clipped to five deviations, as Burda et al.
    2018 do (arXiv:1808.04355, section 2.3).
    """

    def __init__(self, spec: EnvSpec, hidden: Sequence[int], features: int) -> None:
        super().__init__()
        self._observed, self._action = Observed(spec), spec.action
        self.size, self.actions = self._observed.size, encoded_size(spec.action)
        self.norm = RunningNorm(self.size, clip=CLIP)
        self.encoder = self._observed.network(hidden, features)
        self._head = head(spec.action)
        self.inverse = MLP(2 * features, hidden, "relu")
        self.last = linear(self.inverse.size_out, self._head.size, 0.01)

    def rows(self, obs: Tree) -> Tensor:
        """Return whitened observations [T + 1, B, F]."""
        whitened: Tensor = self.norm(self._observed.rows(obs))
        return whitened

    def action_rows(self, action: Tree) -> Tensor:
        """Return actions as numbers [T, B, A]; discrete ones as one-hots."""
        return encode(self._action, action)

    def inverse_loss(self, before: Tensor, after: Tensor, action: Tree) -> Tensor:
        """Return [T, B], the negative log probability of the actions that led from features
        ``before`` [T, B, F] to ``after`` [T, B, F]. Box actions have a deviation of 1.
        """
        pairs = torch.cat([before, after], -1)
        outputs = columns(self.last, self.inverse(pairs.flatten(0, 1)))
        log_std = outputs.new_zeros(self._head.stds)
        return -self._head(outputs, log_std, pairs.shape[:2], None).logp(action)

    def absorb(self, obs: Tree, real: Tensor, pool: Pool) -> None:
        """Add the observations that actions led to, if ``real`` [T, B], to the statistics."""
        every = min(-(-self.size // WIDE), len(real))
        self.norm.absorb(self._observed.rows(obs)[1:][::every], real[::every], pool)
