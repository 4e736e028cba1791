"""The effect of acting with rounded weights, measured during a run: the acting policy compared with
the policy of exact weights.

=================  ====================================================================================================
``p_error``        \\|p(a) - p'(a)\\| of the actions that the rounded policy takes, where they have probabilities
``logp_error``     \\|log p(a) - log p'(a)\\| where they have densities (Box)
``equal_best``     how many greedy actions are the same, where there are values and no policy
``best_error``     \\|a - a'\\| of greedy actions that are numbers of a Box, in the env's units
=================  ====================================================================================================

Both act on one row of all streams, with the recurrent state of that moment, every ``EVERY``
versions.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from equipoise import schema, tree
from equipoise.actors.forward.forward import Forward, Row
from equipoise.memory import Memory
from equipoise.nets import ActorCritic
from equipoise.tree import ArraySpec
from equipoise.types import Array, Tree

EVERY = 16  # versions
KEPT = 4  # kept measurements of an actor


class Rounding:
    """One actor's newest measurements. One writer; a reader may sit in another process."""

    specs = {
        "count": ArraySpec((1,), "int64"),
        "version": ArraySpec((KEPT,), "int64"),
        "numbers": ArraySpec((KEPT, 3), "float64"),  # mean, max, rows
    }

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._views = tree.views(self.specs, memory.buffer)

    def __getstate__(self) -> Memory:
        return self.memory

    def __setstate__(self, memory: Memory) -> None:
        self.__init__(memory)  # type: ignore[misc]

    def due(self, version: int) -> bool:
        count = int(self._views["count"][0])
        return (
            not count or version // EVERY > int(self._views["version"][(count - 1) % KEPT]) // EVERY
        )

    def add(self, version: int, errors: Tensor) -> None:
        """Add a measurement of errors [B]."""
        count = int(self._views["count"][0])
        self._views["version"][count % KEPT] = version
        self._views["numbers"][count % KEPT] = (
            float(errors.mean()),
            float(errors.max()),
            len(errors),
        )
        self._views["count"][0] = count + 1

    def before(self, version: int) -> Array | None:
        """The newest measurement [3] of an older version; None before the first."""
        count = int(self._views["count"][0])
        for i in range(count - 1, max(count - KEPT, 0) - 1, -1):
            if self._views["version"][i % KEPT] < version:
                return self._views["numbers"][i % KEPT]
        return None

    def state(self) -> Tree:
        return tree.map(np.array, self._views)

    def load(self, state: Tree) -> None:
        schema.check(state, schema.like(self._views), "rounding")
        tree.copy(self._views, state)


def rounding_metrics(actors: Sequence[Rounding], kind: str, version: int) -> dict[str, float]:
    """Metrics of the newest measurements of all actors that were made before ``version``: in
    lockstep always the same ones.
    """
    found = [numbers for one in actors if (numbers := one.before(version)) is not None]
    if not found:
        return {}
    mean, most, rows = np.array(found).T
    mean = float((mean * rows).sum() / rows.sum())
    if kind == "equal_best":
        return {"acting/equal_best": mean}
    return {f"acting/{kind}_mean": mean, f"acting/{kind}_max": float(most.max())}


def kind_of(net: object, action: Tree) -> str:
    """The kind of error that fits; ``action``: arrays or specs."""
    dtypes = [np.dtype(str(x.dtype).removeprefix("torch.")) for x in tree.leaves(action)]
    numbers = any(dtype.kind == "f" for dtype in dtypes)
    if isinstance(net, ActorCritic):
        return "logp_error" if numbers else "p_error"
    return "best_error" if numbers else "equal_best"


def errors(forward: Forward, row: Row, state: Tree, explore: Tree) -> Tensor:
    """Errors [B] float64 of the kind from ``kind_of``."""
    algorithm, net, kind = forward.algorithm, forward.net, kind_of(forward.net, row.action)
    obs, first, noise = (
        tree.to(tree.torch_views(x), forward.device) for x in (row.obs, row.first, row.noise)
    )
    if kind in ("p_error", "logp_error"):
        with forward.acting():
            action, _, _ = algorithm.act(net, obs, first, state, explore=explore, noise=noise)
            logp: Tensor = net.policy(obs, first, state)[0].logp(action).double()
        with forward.exact():
            wanted: Tensor = net.policy(obs, first, state)[0].logp(action).double()
        return (logp - wanted).abs() if kind == "logp_error" else (logp.exp() - wanted.exp()).abs()
    with forward.acting():
        mine, _ = algorithm.best(net, obs, first, state)
    with forward.exact():
        theirs, _ = algorithm.best(net, obs, first, state)
    apart = [
        (a - b).abs().double().reshape(len(a), -1)
        for a, b in zip(*map(tree.leaves, (mine, theirs)), strict=True)
    ]
    most: Tensor = torch.cat(apart, 1).amax(1)
    equal: Tensor = most.eq(0).double()
    return equal if kind == "equal_best" else most
