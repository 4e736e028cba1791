"""The KL divergence of a policy since a reward model was fitted, on stored observations."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from equipoise import tree
from equipoise.facts import values_of
from equipoise.nets import action_dims
from equipoise.types import Acts, Algorithm, EnvSpec, Learns, Network, Tree

ROWS = 512  # observations that it is measured on
EDGE = 1e-6  # noise is EDGE to 1 - EDGE


def is_measured(algorithm: Learns, spec: EnvSpec | None = None) -> bool:
    """Return whether the divergence can be measured: the algorithm draws actions from a
    distribution that follows from a stored observation alone, without a recurrent state or a mask.
    """
    memory = values_of(algorithm).get("core", "none") != "none"
    masked = spec is not None and bool(spec.mask)
    return isinstance(algorithm, Acts) and algorithm.stochastic and not memory and not masked


@dataclass(frozen=True, slots=True)
class DrawnActions:
    """Actions that a policy drew at N observations, and their log-probabilities."""

    obs: Tree  # [N, *obs]
    action: Tree  # [N, *action]
    logp: Tensor  # [N]

    def fields(self) -> dict[str, Tree]:
        return {"obs": self.obs, "action": self.action, "logp": self.logp}

    def like(self, specs: Tree) -> DrawnActions:
        """Return the same with actions of the types of ``specs``."""

        def typed(x: Tensor, spec: tree.ArraySpec) -> Tensor:
            return x.to(torch.from_numpy(np.zeros(0, spec.dtype)).dtype)

        return replace(self, action=tree.map(typed, self.action, specs))


@dataclass(frozen=True, slots=True)
class StochasticPolicy:
    """A policy: an algorithm with a distribution, and its network."""

    algorithm: Algorithm
    net: Network

    def draw(self, obs: Tree, spec: EnvSpec, seed: int) -> DrawnActions:
        """Draw an action at each observation."""
        count = len(tree.leaves(obs)[0])
        explores = bool(tree.leaves(self.algorithm.explore(np.zeros(1, np.int64), 1, 0)))
        columns = action_dims(spec.action) + explores + self.algorithm.held_noise(self.net)[0]
        generator = torch.Generator().manual_seed(seed)
        noise = torch.rand(count, columns, generator=generator).clamp(EDGE, 1 - EDGE)
        action, _, _ = self.algorithm.act(
            self.net,
            obs,
            _first(obs),
            self.net.initial_state(count),
            explore={},
            noise=noise.to(_first(obs).device),
        )
        return DrawnActions(obs, action, self._logp(obs, action))

    def divergence(self, drawn: DrawnActions) -> float:
        """Return the KL divergence in nats, of the policy that drew the actions from this one.

        The estimate of an action is (r - 1) - log r, where r is this policy's probability over the
        other's: its mean is the divergence, and it is never negative (Schulman 2020, "Approximating
        KL divergence").
        """
        log_ratio = (self._logp(drawn.obs, drawn.action) - drawn.logp).double().clamp(max=50.0)
        return float((log_ratio.expm1() - log_ratio).mean())

    def _logp(self, obs: Tree, action: Tree) -> Tensor:
        state = self.net.initial_state(len(tree.leaves(obs)[0]))
        logp = self.algorithm.propensity(self.net, obs, _first(obs), state, action, explore={})
        assert logp is not None  # the algorithm is stochastic
        return logp.float()


def _first(obs: Tree) -> Tensor:
    leaf = tree.leaves(obs)[0]
    return torch.zeros(len(leaf), dtype=torch.bool, device=leaf.device)
