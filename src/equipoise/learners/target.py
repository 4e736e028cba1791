"""The target network: a copy that follows the learning network, at once or little by little."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from equipoise import tree
from equipoise.nets.lora import copied


class Target:
    """A copy ``net`` without gradients, which begins equal to the network that it follows.

    Every ``every`` updates its parameters go the share ``tau`` of the way to the other network's,

        theta_target <- theta_target + tau (theta - theta_target)

    (1: Mnih et al. 2015, Nature 518, algorithm 1; below: Lillicrap et al. 2015, arXiv:1509.02971,
    algorithm 1), and its buffers, which are counts and running statistics, become equal.
    """

    def __init__(self, net: Any, *, every: int, tau: float) -> None:
        """``net``: the result of ``Algorithm.followed``, on its device."""
        self.net = copied(net).requires_grad_(False)
        self._source, self.every, self.tau = net, every, tau
        self._mine, self._others = list(self.net.parameters()), list(net.parameters())
        self._buffers = tree.saved_buffers(net).keys()  # names

    @torch.no_grad()
    def follow(self, version: int) -> None:
        """Follow the network, once after every update; ``version`` counts updates."""
        if version % self.every:
            return
        for mine, other in zip(self._mine, self._others, strict=True):
            mine.lerp_(other, self.tau)  # at tau = 1 the very bits of the other
        if self._buffers:
            others = dict(self._source.named_buffers())
            for name, mine in self.net.named_buffers():
                if name in self._buffers:
                    mine.copy_(others[name])

    def state(self) -> dict[str, Tensor]:
        return tree.named_tensors(self.net)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load a state, which the learner has checked."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
