"""A slice of each parameter in each of several learners: FSDP."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from equipoise.learners.parameters.parameters import LossSums, T, added
from equipoise.learners.parameters.parts import Spread
from equipoise.learners.pool import Learners
from equipoise.nets.block import parts
from equipoise.types import LossOutput


class Sliced(Spread):
    """1/L of each parameter, for a learner that learns from its share of a batch.

    torch's ``fully_shard`` (FSDP: Zhao et al. 2023, arXiv:2304.11277; first as ZeRO-3: Rajbhandari
    et al. 2020, arXiv:1910.02054): the parameters of a ``Block`` are gathered while it is computed,
    parameters of no block while a loss is computed, and a gradient is added up by a reduce-scatter.
    The optimiser moves the parts.
    """

    def __init__(self, learners: Learners) -> None:
        super().__init__(learners, pool=learners)

    def spread(self, mesh: DeviceMesh) -> None:
        from torch.distributed.fsdp import FSDPModule, fully_shard

        self._forward = _Forward(self.net)
        for module in (*reversed(parts(self.net)), self._forward):  # the inner blocks come first
            held = fully_shard(module, mesh=mesh, reshard_after_forward=True)
            assert isinstance(held, FSDPModule)
            held.set_gradient_divide_factor(1.0)  # sums, not means
            held.set_force_sum_reduction_for_comms(True)  # gloo has no product before a sum

    def compute(self, work: Callable[[], T]) -> T:
        out: tuple[Tensor | None, T] = self._forward(work)
        return out[1]

    def begin(self, group: str, parts: int) -> int:
        super().begin(group, parts)
        return int(self.pool.max(torch.tensor(parts))) - parts

    def backward(
        self, group: str, out: LossOutput, before: LossSums | None, fill: Callable[[Tensor], None]
    ) -> Tensor:
        fill(out.loss)
        loss, count = self.pool.sum(torch.stack(added(out, before)).float())
        return self._mean(group, loss, count)


class _Forward(nn.Module):
    """A computation with the network as a module's forward, so that FSDP finds its backward."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, work: Callable[[], T]) -> tuple[Tensor | None, T]:
        out = work()
        return out.loss if isinstance(out, LossOutput) else None, out
