"""A learner that keeps its part of each parameter, and of what goes with it: FSDP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.learners.learner import Learner, Part, Step
from equipoise.learners.mesh import lost, mesh_of
from equipoise.learners.parts import Gathered, Parts
from equipoise.nets.block import blocks
from equipoise.types import Batch, LossOutput, Tree


class ShardedLearner(Learner):
    """One of L learners, with 1/L of each parameter, of its gradient and of what the optimiser remembers.

    torch's ``fully_shard`` does so (FSDP: Zhao et al. 2023, arXiv:2304.11277; first as ZeRO-3: Rajbhandari et al. 2020,
    arXiv:1910.02054): the parameters of a ``Block`` are gathered while it is computed, those of no block while a loss is, and a
    gradient is added up by a reduce-scatter. The optimiser moves the parts.

    ``params``, ``state`` and ``load`` are of whole tensors, as with any other learner. So all learners ask for them at once:
    ``params`` is gathered tensor by tensor as it is read, while the others ``attend``; only learner 0 is given the groups of
    ``state``, and the others empty tensors.
    """

    def _hold(self) -> Mapping[str, Any]:
        from torch.distributed.fsdp import FSDPModule, fully_shard

        mesh = mesh_of(self.pool, self.device)  # type: ignore[arg-type]  # a learner of several has a Group
        self._around = _Around(self.net)
        for module in (*reversed(blocks(self.net)), self._around):  # what is inside comes first
            held = fully_shard(module, mesh=mesh, reshard_after_forward=True)
            assert isinstance(held, FSDPModule)
            held.set_gradient_divide_factor(1.0)  # sums, not means
            held.set_force_sum_reduction_for_comms(True)  # gloo has no product before a sum
        return {name: Parts(self.optimizer, params) for name, params in self.algorithm.groups(self.net).items()}

    def params(self) -> Mapping[str, Tensor]:
        return Gathered(super().params())

    def attend(self) -> None:
        for _ in self.params().values():
            pass

    def step(self, batch: Batch) -> Step:
        with lost():
            return super().step(batch)

    def _computed(self, work: Any) -> Any:
        _, out = self._around(work)
        return out

    def _begin(self, group: str, parts: Sequence[Batch], target_net: Any) -> None:
        self._optimizers[group].clear()
        # Who has fewer parts than others computes one for nothing, since all gather the parameters of each.
        for _ in range(int(self.pool.max(torch.tensor(len(parts)))) - len(parts)):
            if (out := self._loss(parts[0], target_net, group)) is not None:
                (out.loss * 0.0).backward()  # type: ignore[no-untyped-call]

    def _backward_of(self, group: str, out: LossOutput, before: Part | None) -> Tensor:
        mine = self._add(group, out, before)
        loss, count = self.pool.sum(torch.stack(mine).float())
        for part in self._gradient(group):
            part.div_(count.clamp(min=1))
        return loss / count.clamp(min=1)

    def _gradient(self, group: str) -> Sequence[Tensor]:
        return self._optimizers[group].gradient()  # type: ignore[no-any-return]

    def _norm(self, gradient: Sequence[Tensor]) -> Tensor:
        parts = torch.stack([torch.linalg.vector_norm(part) for part in gradient])
        return self.pool.sum(parts.square().sum()).sqrt()

    def _group(self, name: str) -> Tree:
        return self._optimizers[name].state(keep=self.pool.rank == 0)

    def _group_like(self, name: str) -> Tree:
        return self._optimizers[name].like()

    def _load_group(self, name: str, group: Tree) -> None:
        self._optimizers[name].load(group)


class _Around(nn.Module):
    """What FSDP takes for the network's forward: any computation with it, whose loss leads to its backward."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, work: Any) -> tuple[Tensor | None, Any]:
        out = work()
        return out.loss if isinstance(out, LossOutput) else None, out
