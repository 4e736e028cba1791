"""Twin critics: two (or more) independent estimates of one value.

Fujimoto et al. 2018, arXiv:1802.09477, section 4.2, whose loss takes the smaller. All members are
computed together, as one product of batches of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from equipoise.nets.activations import ACTIVATIONS
from equipoise.nets.features import Features
from equipoise.nets.precision import exact
from equipoise.private.torch import parameters
from equipoise.types import EnvSpec, Tree


class TwinMLP(nn.Module):
    """Two MLPs of one shape, or ``members`` of them: rows [N, size], or [members, N, size] with
    rows for each member, -> [members, N, outputs] float32.

    Weights are [members, in, out], each member orthogonal (gain sqrt(2) in hidden layers, 1 at the
    output), biases 0.
    """

    def __init__(
        self, size: int, hidden: Sequence[int], activation: str, outputs: int, *, members: int = 2
    ) -> None:
        super().__init__()
        self.members = members
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"activation {activation!r} is unknown; known are {', '.join(ACTIVATIONS)}"
            )
        self.activation = activation
        sizes = list(pairwise((size, *hidden, outputs)))
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for n, (size_in, size_out) in enumerate(sizes):
            gain = math.sqrt(2) if n < len(sizes) - 1 else 1.0
            drawn = [
                nn.init.orthogonal_(torch.empty(size_out, size_in), gain).t()
                for _ in range(members)
            ]
            self.weights.append(nn.Parameter(torch.stack(drawn)))
            self.biases.append(nn.Parameter(torch.zeros(members, 1, size_out)))

    def forward(self, x: Tensor) -> Tensor:
        layers = self._layers(self.members)
        return self._out(self._hidden(x, layers)[-1], layers)

    def least(
        self, x: Tensor, columns: int, *, members: int, select: bool
    ) -> tuple[Tensor, Tensor]:
        """The smallest of the first ``members``' outputs [N], and the gradient [N, columns] for the
        last ``columns`` of ``x``. No graph is recorded.

        By hand, since autograd would go back through all members for all rows, and each row needs
        only its smallest one: that is ``select``. Without it all rows go, and no size depends on
        the data, which a GPU would have to be waited for.
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
                    grad = SLOPES[self.activation](
                        grad, y if rows is None else y.index_select(0, rows)
                    )
                    grad = grad @ (w if n > 1 else w[-columns:]).t()
                grad = grad[:, -columns:]
                if rows is None:
                    slope += grad * mine.unsqueeze(1)
                else:
                    slope[rows] = grad.to(slope.dtype).expand(len(rows), columns)
        return value, slope

    def _layers(self, members: int) -> list[tuple[Tensor, Tensor]]:
        """Weight and bias of each layer, read past ``ParameterList``, which costs 5 us an item;
        whole if all members compute, since the gradient of a part is copied once more into one of
        the whole.
        """
        pairs = list(
            zip(parameters(self.weights).values(), parameters(self.biases).values(), strict=True)
        )
        return pairs if members == self.members else [(w[:members], b[:members]) for w, b in pairs]

    def _hidden(self, x: Tensor, layers: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """The input and what each hidden layer makes of it, [2, N, ...]."""
        activate = ACTIVATIONS[self.activation]
        seen = [x if x.ndim == 3 else x.unsqueeze(0)]
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
            # a batch of matrices by one vector each: slow as products
            return (x * w.transpose(1, 2)).sum(-1, keepdim=True) + b


SLOPES: dict[
    str, Callable[[Tensor, Tensor], Tensor]
] = {  # the gradient of an activation's input, from its output and the output's gradient
    # As autograd does it, in 17 us for 2 x 256 x 256; ``where`` of a comparison and a number takes
    # 560.
    "relu": lambda grad, y: torch.ops.aten.threshold_backward(grad.expand_as(y), y, 0),
    "tanh": lambda grad, y: grad * (1 - y.square()),
}


def slope(critic: Callable[[Tensor], Tensor], action: Tensor) -> tuple[Tensor, Tensor]:
    """critic(action) [N] of an action [N, d], and its gradient [N, d]. No graph is left."""
    with torch.enable_grad():
        free = action.detach().requires_grad_()
        value = critic(free)
        (gradient,) = torch.autograd.grad(value.sum(), free)
    return value.detach(), gradient


class TwinCritic(Features):
    """Q of each member: [members, N] for an action [N, d].

    With ``outputs`` it is [members, N, outputs]: values of the actions of a Discrete space, or
    quantiles. A torso for images is shared by the members; else they see the encoded observation.
    """

    def __init__(
        self,
        spec: EnvSpec,
        *,
        hidden: Sequence[int],
        activation: str,
        torso: str,
        action_size: int = 0,
        outputs: int = 0,
        members: int = 2,
        twins: type[TwinMLP] = TwinMLP,
    ) -> None:
        super().__init__(spec, hidden=(), activation=activation, torso=torso)
        self.twins = twins(
            self.size_out + action_size, hidden, activation, outputs or 1, members=members
        )
        self.one_value = outputs == 0

    def forward(self, obs: Tree, action: Tensor | None = None) -> Tensor:
        """action [N, d] in -1 .. 1 (``Bounds``), None if the space is Discrete."""
        features = self.features(obs)
        q: Tensor = self.twins(features if action is None else torch.cat([features, action], -1))
        return q.squeeze(-1) if self.one_value else q

    def least(self, obs: Tree, action: Tensor, *, members: int = 2) -> Tensor:
        """The smallest Q [N] of the first ``members``; only the action gets a gradient."""
        with torch.no_grad():
            x = torch.cat([self.features(obs), action], -1)
        value, gradient = self.twins.least(
            x, action.shape[-1], members=members, select=x.device.type == "cpu"
        )
        return value + (gradient * (action - action.detach())).sum(-1)

    def mean(self, obs: Tree, action: Tensor) -> Tensor:
        """The mean [N] of all members' outputs; only the action gets a gradient."""
        with torch.no_grad():
            features = self.features(obs)
        value, gradient = slope(
            lambda free: self.twins(torch.cat([features, free], -1)).mean((0, 2)), action
        )
        return value + (gradient * (action - action.detach())).sum(-1)
