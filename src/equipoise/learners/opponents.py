"""Frozen opponents: past versions of a policy that learns, of which one plays at a time."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from equipoise import schema
from equipoise.types import Frozen, Tree, WeightStore


class OpponentPool:
    """Past versions of one ``Frozen`` policy, published with the learner's current version."""

    def __init__(
        self, frozen: Frozen, weights: WeightStore, first: Mapping[str, Tensor], *, seed: int
    ) -> None:
        """``first``: version 0, which is published already."""
        self.frozen, self._weights = frozen, weights
        self._pool: list[tuple[int, dict[str, Tensor]]] = [(0, _copy(first))]
        self._playing = 0  # place in the pool
        self._rng = torch.Generator().manual_seed(seed)

    @property
    def version(self) -> int:
        """The version that plays."""
        return self._pool[self._playing][0]

    def params(self) -> Mapping[str, Tensor]:
        return self._pool[self._playing][1]

    def tick(self, version: int, params: Mapping[str, Tensor]) -> None:
        """Maybe add the policy's new version to the pool, then draw the opponent that plays."""
        if version % self.frozen.every:
            return
        self._pool = [*self._pool, (version, _copy(params))][-self.frozen.pool :]
        self._playing = int(torch.randint(len(self._pool), (), generator=self._rng))
        self._weights.publish(version, self.params())

    def state(self) -> Tree:
        return {
            "rng": self._rng.get_state(),
            "playing": self._playing,
            "pool": {str(version): dict(params) for version, params in self._pool},
        }

    def load(self, state: Tree) -> None:
        """Load a state; the caller that loads the run's weights publishes the playing ones."""
        params = schema.like(dict(self._pool[0][1]), finite=True)
        rng = schema.like(self._rng.get_state())
        schema.check(
            state,
            {"rng": rng, "playing": schema.count(), "pool": schema.Each(params, self.frozen.pool)},
            "",
        )
        if not (
            all(version.isdecimal() for version in state["pool"])
            and state["playing"] < len(state["pool"])
        ):
            raise ValueError(
                f"expected versions, one of which plays, got {list(state['pool'])} and "
                f"{state['playing']}"
            )
        self._rng.set_state(state["rng"])
        self._playing = state["playing"]
        self._pool = [(int(version), params) for version, params in state["pool"].items()]


def _copy(params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in params.items()}
