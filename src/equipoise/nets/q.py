"""Networks of action values, or distributions of returns, for a Discrete space."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from gymnasium import spaces
from torch import Tensor

from equipoise import tree
from equipoise.nets.cores import NO_CORE, CoreOptions, make_core
from equipoise.nets.distributions import MASKED, taken_by
from equipoise.nets.features import Features
from equipoise.nets.precision import exact
from equipoise.nets.torso import linear
from equipoise.types import EnvSpec, Tree


class QNetwork(Features):
    """Torso and a linear head of ``bins`` numbers an action: values, logits of atoms, or quantiles.

    ``dueling`` (Wang et al. 2016, arXiv:1511.06581, Eq. 9) adds a second head, of the state alone:

        Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a')

    for each bin, both heads on the features of one torso (the paper gives each a hidden layer of
    its own). The heads compute in float32 also under autocast.

    With a ``core`` between the torso and the heads the values depend on the whole episode so far,
    and only ``step`` and ``unroll`` give them; ``state`` is the core's.
    """

    def __init__(
        self,
        spec: EnvSpec,
        *,
        hidden: Sequence[int],
        activation: str,
        torso: str,
        dueling: bool = False,
        bins: int = 1,
        core: CoreOptions = NO_CORE,
    ) -> None:
        super().__init__(spec, hidden=hidden, activation=activation, torso=torso)
        self.actions, self.start = discrete(spec.action)
        self.bins = bins
        self.core = make_core(core, self.size_out)
        width = self.size_out if self.core is None else core.size
        self.head = linear(width, self.actions * bins, 1.0)
        self.value_head = linear(width, bins, 1.0) if dueling else None

    def initial_state(self, batch: int) -> Tree:
        return {} if self.core is None else self.core.initial_state(batch)

    def forward(self, obs: Tree) -> Tensor:
        """obs [N, ...] -> [N, actions, bins], without a core."""
        return self._values(self.features(obs))

    def step(self, obs: Tree, first: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """obs [B, ...], first [B] bool, state [B, ...] -> [B, actions, bins], the next state."""
        features = self.features(obs)
        if self.core is not None:
            with exact(features.device):
                features, state = self.core.step(features, first, state)
        return self._values(features), state

    def unroll(self, obs: Tree, first: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """obs [T, B, ...], first [T, B], state -> [T, B, actions, bins], state after row T - 1."""
        features = self.features(tree.map(lambda leaf: leaf.flatten(0, 1), obs))
        if self.core is not None:
            with exact(features.device):
                unrolled, state = self.core.unroll(features.view(*first.shape, -1), first, state)
                features = unrolled.flatten(0, 1)
        return self._values(features).view(*first.shape, self.actions, self.bins), state

    def _values(self, features: Tensor) -> Tensor:
        with exact(features.device):
            out: Tensor = self.head(features).view(-1, self.actions, self.bins)
            if self.value_head is not None:
                out = out - out.mean(1, keepdim=True) + self.value_head(features).unsqueeze(1)
            return out

    def taken(self, out: Tensor, action: Tensor) -> Tensor:
        """out [N, actions, bins], env actions [N] -> the actions' bins [N, bins]."""
        return out[torch.arange(len(out), device=out.device), action - self.start]


def discrete(space: spaces.Space[object]) -> tuple[int, int]:
    """The number of actions and the first one; ValueError for any space but a Discrete."""
    if not isinstance(space, spaces.Discrete):
        raise ValueError(
            "action space: expected a Discrete, since there is a value for each action, got "
            f"{space}{taken_by(space)}"
        )
    return int(space.n), int(space.start)


def greedy(q: Tensor, allowed: Tensor | None) -> Tensor:
    """[N], the place of the best of the actions [N, actions] that are allowed."""
    return (q if allowed is None else torch.where(allowed, q, MASKED)).argmax(-1)


def any_of(u: Tensor, actions: int, allowed: Tensor | None) -> Tensor:
    """[N], the place of an action that is allowed, each with the same chance; u [N] uniform in (0,
    1), float32.

    Below 1 a float32 is at most 1 - 2^-24, whose product with a whole number is never rounded up to
    that number.
    """
    if allowed is None:
        return (u * actions).to(torch.int64)
    nth = (u * allowed.sum(-1)).to(torch.int64)
    return (allowed.cumsum(-1) <= nth.unsqueeze(-1)).sum(-1)
