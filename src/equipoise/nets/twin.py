"""Twin critics: two independent estimates of one value; the smaller one is used.

Fujimoto et al. 2018, arXiv:1802.09477, section 4.2. Both members are computed together, as one product of batches of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

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

    def forward(self, x: Tensor) -> Tensor:
        layers = self._layers(2)
        return self._out(self._hidden(x, layers)[-1], layers)

    def least(self, x: Tensor, columns: int, *, members: int = 2, select: bool) -> tuple[Tensor, Tensor]:
        """The smaller of both members' outputs [N] (with ``members`` 1: the first), and the gradient [N, columns] for the last
        ``columns`` of ``x``. No graph is recorded.

        By hand, since autograd would go back through both members for all rows, and each row needs only its smaller one: that
        is ``select``. Without it all rows go, and no size depends on the data, which a GPU would have to be waited for.
        """
        with torch.no_grad():
            layers = self._layers(members)
            hidden = self._hidden(x, layers)
            value, which = self._out(hidden[-1], layers).squeeze(-1).min(0)
            slope = x.new_zeros(len(x), columns)
            for member in range(members):
                mine = which == member
                rows = mine.nonzero().squeeze(1) if select and members > 1 else None
                grad = layers[-1][0][member].t()
                for n in range(len(hidden) - 1, 0, -1):
                    y, w = hidden[n][member], layers[n - 1][0][member]
                    grad = SLOPES[self.activation](grad, y if rows is None else y.index_select(0, rows))
                    grad = grad @ (w if n > 1 else w[-columns:]).t()
                grad = grad[:, -columns:]
                if rows is None:
                    slope += grad * mine.unsqueeze(1)
                else:
                    slope[rows] = grad.to(slope.dtype).expand(len(rows), columns)
        return value, slope

    def _layers(self, members: int) -> list[tuple[Tensor, Tensor]]:
        """Weight and bias of each layer, read past ``ParameterList``, which costs 5 us an item; whole where both members
        compute, since the gradient of a part is copied once more into one of the whole.
        """
        weights: dict[str, Any] = self.weights._parameters
        biases: dict[str, Any] = self.biases._parameters
        pairs = list(zip(weights.values(), biases.values(), strict=True))
        return pairs if members == 2 else [(w[:members], b[:members]) for w, b in pairs]

    def _hidden(self, x: Tensor, layers: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """The input and what each hidden layer makes of it, [2, N, ...]."""
        activate = ACTIVATIONS[self.activation]
        seen = [x.unsqueeze(0)]
        for w, b in layers[:-1]:
            seen.append(activate(torch.baddbmm(b, seen[-1].expand(len(w), *seen[-1].shape[1:]), w)))
        return seen

    def _out(self, x: Tensor, layers: list[tuple[Tensor, Tensor]]) -> Tensor:
        """The last layer, in float32 also under autocast."""
        w, b = layers[-1]
        with exact(x.device):
            x = x.float()
            if w.shape[-1] > 1:
                return torch.baddbmm(b, x.expand(len(w), *x.shape[1:]), w)
            return (x * w.transpose(1, 2)).sum(-1, keepdim=True) + b  # a batch of matrices by one vector each: slow as products


SLOPES: dict[
    str, Callable[[Tensor, Tensor], Tensor]
] = {  # the gradient of an activation's input, from its output and the output's gradient
    # As autograd does it, in 17 us for 2 x 256 x 256; ``where`` of a comparison and a number takes 560.
    "relu": lambda grad, y: torch.ops.aten.threshold_backward(grad.expand_as(y), y, 0),
    "tanh": lambda grad, y: grad * (1 - y.square()),
}


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

    def forward(self, obs: Tree, action: Tensor | None = None) -> Tensor:
        """action [N, d] in -1 .. 1 (``Bounds``), None where the space is Discrete."""
        features = self.features(obs)
        q: Tensor = self.twins(features if action is None else torch.cat([features, action], -1))
        return q.squeeze(-1) if self.of_action else q

    def least(self, obs: Tree, action: Tensor, *, members: int = 2) -> Tensor:
        """The smaller Q [N] (with ``members`` 1: the first) of an actor's action, which alone gets a gradient."""
        with torch.no_grad():
            x = torch.cat([self.features(obs), action], -1)
        value, slope = self.twins.least(x, action.shape[-1], members=members, select=x.device.type == "cpu")
        return value + (slope * (action - action.detach())).sum(-1)
