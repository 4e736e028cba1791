"""Twin critics: two estimates of one value, independent of each other, of which the smaller is believed.

Fujimoto et al. 2018, arXiv:1802.09477, section 4.2. Both members are computed together, as one product of batches of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from equipoise.nets.features import Features
from equipoise.nets.precision import exact
from equipoise.nets.torso import ACTIVATIONS
from equipoise.types import EnvSpec, Tree


class TwinMLP(nn.Module):
    """Two MLPs of one shape: rows [N, size] -> [2, N, outputs] float32.

    Weights are [2, in, out], each member orthogonal (gain sqrt(2) in hidden layers, 1 at the output), biases 0.
    """

    def __init__(self, size: int, hidden: Sequence[int], activation: str, outputs: int) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation {activation!r} is unknown; known are {', '.join(ACTIVATIONS)}")
        self.activation = activation
        sizes = list(pairwise((size, *hidden, outputs)))
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for n, (size_in, size_out) in enumerate(sizes):
            gain = math.sqrt(2) if n < len(sizes) - 1 else 1.0
            members = [nn.init.orthogonal_(torch.empty(size_out, size_in), gain).t() for _ in range(2)]
            self.weights.append(nn.Parameter(torch.stack(members)))
            self.biases.append(nn.Parameter(torch.zeros(2, 1, size_out)))

    def forward(self, x: Tensor, *, frozen: bool = False) -> Tensor:
        """``frozen``: the gradient flows through to ``x`` and into no parameter."""
        activate = ACTIVATIONS[self.activation]
        layers = [(w.detach(), b.detach()) if frozen else (w, b) for w, b in zip(self.weights, self.biases, strict=True)]
        x = x.expand(2, *x.shape)
        for w, b in layers[:-1]:
            x = activate(torch.baddbmm(b, x, w))
        w, b = layers[-1]
        with exact(x.device):
            x = x.float()
            several = w.shape[-1] > 1  # a batch of matrices by one vector each is slow as a product
            q: Tensor = torch.baddbmm(b, x, w) if several else (x * w.transpose(1, 2)).sum(-1, keepdim=True) + b
            return q


class TwinCritic(Features):
    """Q of both members: [2, N] for an action [N, d], or, with ``actions``, [2, N, actions] for each of a Discrete space.

    A torso for images is shared by the two; else they see the encoded observation.
    """

    def __init__(
        self, spec: EnvSpec, *, hidden: Sequence[int], activation: str, torso: str, action_size: int = 0, actions: int = 0
    ) -> None:
        super().__init__(spec, hidden=(), activation=activation, torso=torso)
        self.twins = TwinMLP(self.size_out + action_size, hidden, activation, actions or 1)
        self.of_action = action_size > 0

    def forward(self, obs: Tree, action: Tensor | None = None, *, frozen: bool = False) -> Tensor:
        """action [N, d] in -1 .. 1 (``Bounds``), None where the space is Discrete; ``frozen``: it alone gets a gradient."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            features = self.features(obs)
        q: Tensor = self.twins(features if action is None else torch.cat([features, action], -1), frozen=frozen)
        return q.squeeze(-1) if self.of_action else q
