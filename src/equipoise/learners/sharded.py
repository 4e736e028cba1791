"""Learners that keep their part of large parameters: FSDP, and tensor parallelism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, distributed, nn

from equipoise import tree
from equipoise.learners.going import Part, Step
from equipoise.learners.learner import Learner
from equipoise.learners.mesh import lost, mesh_of
from equipoise.learners.parts import Gathered, Parts
from equipoise.learners.pool import ALONE, Learners
from equipoise.nets.block import blocks
from equipoise.types import TRAJECTORY_STREAMS, Batch, LossOutput, Trajectory, Tree


class Spread(Learner):
    """One of several learners that has a part of some parameters, of their gradient and of what the optimiser remembers.

    ``params``, ``state`` and ``load`` are of whole tensors, as with any other learner. So all learners ask for them at once:
    ``params`` is gathered tensor by tensor as it is read, while the others ``attend``; only learner 0 is given the groups of
    ``state``, and the others empty tensors.
    """

    @property
    def learners(self) -> Learners:
        """This one's place among those that have the other parts."""
        return self.pool

    def _hold(self) -> Mapping[str, Any]:
        self._spread(mesh_of(self.learners, self.device))  # type: ignore[arg-type]  # several learners have a Group
        return {name: Parts(self.optimizer, params) for name, params in self.algorithm.groups(self.net).items()}

    def _spread(self, mesh: Any) -> None:
        """Spread the network's parameters over the learners."""
        raise NotImplementedError

    def params(self) -> Mapping[str, Tensor]:
        return Gathered(super().params())

    def attend(self) -> None:
        for _ in self.params().values():
            pass

    def step(self, batch: Batch) -> Step:
        with lost():
            return super().step(batch)

    def _begin(self, group: str, parts: Sequence[Batch], target_net: Any, going: Any) -> None:
        self._optimizers[group].clear()

    def _gradient(self, group: str) -> Sequence[Tensor]:
        return self._optimizers[group].gradient()  # type: ignore[no-any-return]

    def _norm(self, group: str) -> Tensor:
        return self.learners.sum(self._optimizers[group].squares(self.learners.size)).sqrt()

    def _group(self, name: str) -> Tree:
        return self._optimizers[name].state(keep=self.learners.rank == 0)

    def _group_like(self, name: str) -> Tree:
        return self._optimizers[name].like()

    def _load_group(self, name: str, group: Tree) -> None:
        self._optimizers[name].load(group)


class FSDPLearner(Spread):
    """A learner with 1/L of each parameter, which learns from its share of a batch.

    torch's ``fully_shard`` (FSDP: Zhao et al. 2023, arXiv:2304.11277; first as ZeRO-3: Rajbhandari et al. 2020,
    arXiv:1910.02054): the parameters of a ``Block`` are gathered while it is computed, those of no block while a loss is, and a
    gradient is added up by a reduce-scatter. The optimiser moves the parts.
    """

    def _spread(self, mesh: Any) -> None:
        from torch.distributed.fsdp import FSDPModule, fully_shard

        self._around = _Around(self.net)
        for module in (*reversed(blocks(self.net)), self._around):  # what is inside comes first
            held = fully_shard(module, mesh=mesh, reshard_after_forward=True)
            assert isinstance(held, FSDPModule)
            held.set_gradient_divide_factor(1.0)  # sums, not means
            held.set_force_sum_reduction_for_comms(True)  # gloo has no product before a sum

    def _computed(self, work: Any) -> Any:
        _, out = self._around(work)
        return out

    def _begin(self, group: str, parts: Sequence[Batch], target_net: Any, going: Any) -> None:
        super()._begin(group, parts, target_net, going)
        # Who has fewer parts than others computes one for nothing, since all gather the parameters of each.
        for _ in range(int(self.pool.max(torch.tensor(len(parts)))) - len(parts)):
            if (out := self._loss_of(parts[0], target_net, group, going)) is not None:
                (out.loss * 0.0).backward()  # type: ignore[no-untyped-call]

    def _backward_of(self, group: str, out: LossOutput, before: Part | None) -> Tensor:
        mine = self._add(group, out, before)
        loss, count = self.pool.sum(torch.stack(mine).float())
        for part in self._gradient(group):
            part.div_(count.clamp(min=1))
        mean: Tensor = loss / count.clamp(min=1)
        return mean


class TensorLearner(Spread):
    """A learner with 1/L of the units of a block's layers, which learns from the whole batch: it has the shares of all.

    torch's ``parallelize_module`` (Shoeybi et al. 2019, arXiv:1909.08053, section 3): of each pair of layers
    (``Block.pairs``) the first one's outputs, and the second one's inputs, are spread. All else is computed by all learners
    alike. To itself such a learner is alone, so L of them make the update of one to rounding, with its random numbers.
    """

    def __init__(self, algorithm: Any, net: Any, *, pool: Learners, **settings: Any) -> None:
        self._learners = pool
        super().__init__(algorithm, net, pool=ALONE, **settings)

    @property
    def learners(self) -> Learners:
        return self._learners

    def _spread(self, mesh: Any) -> None:
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        for block in blocks(self.net):
            for first, second in block.pairs:
                # Every learner has built the same network: None, and nothing is sent.
                plan = {first: ColwiseParallel(), second: RowwiseParallel()}
                parallelize_module(block, mesh, plan, src_data_rank=None)

    def step(self, batch: Batch) -> Step:
        return super().step(self._of_all(batch))

    def _of_all(self, batch: Batch) -> Batch:
        """The batch of all learners' shares, in the order of their numbers."""

        def gathered(x: Tensor, axis: int) -> Tensor:
            mine = x.to(self.device).movedim(axis, 0).contiguous()
            whole = mine.new_empty((self.learners.size * len(mine), *mine.shape[1:]))
            distributed.all_gather(list(whole.tensor_split(self.learners.size)), mine)
            return whole.movedim(0, axis)

        def field(name: str) -> Tree:
            axis = 0 if name in TRAJECTORY_STREAMS else 1
            return tree.map(lambda x: gathered(x, axis), getattr(batch.data, name))

        with lost():
            data = Trajectory(**{name: field(name) for name in Trajectory.__slots__})
            keys = gathered(torch.as_tensor(batch.keys), 0).cpu().numpy()
            return replace(batch, data=data, keys=keys, weight=gathered(torch.as_tensor(batch.weight), 0))


class _Around(nn.Module):
    """What FSDP takes for the network's forward: any computation with it, whose loss leads to its backward."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, work: Any) -> tuple[Tensor | None, Any]:
        out = work()
        return out.loss if isinstance(out, LossOutput) else None, out


KINDS: Mapping[str, type[Spread]] = {"fsdp": FSDPLearner, "tensor": TensorLearner}
