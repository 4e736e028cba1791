"""States of a learner that a reward term keeps by name and brings back later."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from equipoise import schema, tree
from equipoise.learners.parameters.parameters import Parameters
from equipoise.learners.target import Target
from equipoise.types import Tree

MOST = 8  # kept states


class KeptStates:
    """The weights, optimisers, statistics and target network of a learner: its present state, and
    copies that are kept by name.
    """

    def __init__(self, net: nn.Module, parameters: Parameters, target: Target | None) -> None:
        self.net, self._parameters, self._target = net, parameters, target
        self._kept: dict[str, Tree] = {}
        self.progress = 0.0  # share of the schedule that is done

    def now(self, group: Callable[[str], Tree]) -> dict[str, Tree]:
        """Return the present state; ``group`` returns that of a group of parameters by its name."""
        return {
            "groups": {name: group(name) for name in self._parameters.optimizers},
            "buffers": tree.saved_buffers(self.net),
            "target": {} if self._target is None else self._target.state(),
        }

    def take(self, state: Mapping[str, Tree]) -> None:
        """Go on from a state that ``now`` returned."""
        for name, group in state["groups"].items():
            self._parameters.load(name, group)
        for name, buffer in tree.saved_buffers(self.net).items():
            buffer.copy_(state["buffers"][name])
        if self._target is not None:
            self._target.load(state["target"])

    def keep(self, name: str) -> None:
        """Keep a copy of the present state by this name, in place of an earlier one."""
        self._kept[name] = tree.map(torch.clone, self.now(self._parameters.state))

    def rename(self, name: str, other: str) -> None:
        """Keep a kept state by another name."""
        self._kept[other] = self._kept.pop(name)

    def go_back(self, name: str) -> None:
        """Go on from a kept state."""
        self.take(self._kept[name])

    def state(self) -> dict[str, Tree]:
        """Return {"kept": the kept states by name}; {} if there are none."""
        return {"kept": dict(self._kept)} if self._kept else {}

    def schema(self) -> dict[str, schema.Schema]:
        one = schema.like(self.now(self._parameters.like), finite=True)
        return {"kept?": schema.Each(one, MOST)}

    def load(self, state: Mapping[str, Tree]) -> None:
        """Load the kept states from ``state``, in place of the present ones."""

        def placed(to: Tensor, x: Tensor) -> Tensor:
            return x.to(to.device, copy=True)

        like = self.now(self._parameters.like)
        self._kept = {
            name: tree.map(placed, like, one) for name, one in state.get("kept", {}).items()
        }
