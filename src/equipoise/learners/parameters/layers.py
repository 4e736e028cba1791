"""Slices of wide layers in each of several learners: tensor parallelism."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh

from equipoise import tree
from equipoise.learners.parameters.mesh import lost
from equipoise.learners.parameters.parts import Spread
from equipoise.learners.pool import ALONE, Learners
from equipoise.nets.block import blocks
from equipoise.types import TRAJECTORY_STREAMS, Batch, Trajectory, Tree, by_field


class Layers(Spread):
    """1/L of the units of a block's layers, for a learner that learns from the whole batch: it has
    the shares of all.

    torch's ``parallelize_module`` (Shoeybi et al. 2019, arXiv:1909.08053, section 3): of each pair
    of layers (``Block.pairs``) the first one's outputs, and the second one's inputs, are spread.
    All else is computed by all learners alike. The pool of such a learner is ``ALONE``, so L of
    them make the update of one to rounding, with its random numbers.
    """

    def __init__(self, learners: Learners) -> None:
        super().__init__(learners, pool=ALONE)

    def spread(self, mesh: DeviceMesh) -> None:
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        for block in blocks(self.net):
            for first, second in block.pairs:
                # Every learner has built the same network: None, and nothing is sent.
                plan = {first: ColwiseParallel(), second: RowwiseParallel()}
                parallelize_module(block, mesh, plan, src_data_rank=None)

    def share(self, batch: Batch) -> Batch:
        """Return the rows of all learners' shares, in the order of their numbers."""

        def gathered(x: Tensor, axis: int) -> Tensor:
            mine = x.to(self.device).movedim(axis, 0).contiguous()
            whole = mine.new_empty((self.learners.size * len(mine), *mine.shape[1:]))
            distributed.all_gather(list(whole.tensor_split(self.learners.size)), mine)
            return whole.movedim(0, axis)

        def whole(name: str, field: Tree) -> Tree:
            axis = 0 if name in TRAJECTORY_STREAMS else 1
            return tree.map(lambda x: gathered(x, axis), field)

        with lost():
            fields = by_field(batch.data).items()
            data = Trajectory(**{name: whole(name, field) for name, field in fields})
            keys = gathered(torch.as_tensor(batch.keys), 0).cpu().numpy()
            return replace(
                batch, data=data, keys=keys, weight=gathered(torch.as_tensor(batch.weight), 0)
            )
