"""The parameters of an optimiser group, and their gradients, are views of one flat buffer each.

One tensor per group makes the optimiser step, the gradient norm, the clip and a data-parallel
reduction one operation each, however many layers there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from equipoise.learners.optimizers import descent
from equipoise.learners.parameters.buckets import MORE, Buckets
from equipoise.learners.parameters.parameters import Groups, LossSums, Parameters, added
from equipoise.types import LossOutput, Optimizer, Tree

ROW = 1 << 16


def flatten(params: Sequence[nn.Parameter], room: int = 0) -> nn.Parameter:
    """Move ``params`` into one new leaf ``[n]`` whose ``grad`` is flat too; they and their
    gradients become views of it.

    ``room``: numbers that lie after the gradient in the same memory, so that they are sent with it.
    All must share one dtype and device. The module goes on working as before; an in-place step on
    the flat leaf moves it.
    """
    if len({(p.dtype, p.device) for p in params}) != 1:
        kinds = sorted({f"{p.dtype} on {p.device}" for p in params})
        raise ValueError(
            f"expected an optimiser group of one dtype and device, got {kinds or 'no parameters'}"
        )
    flat = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in params]))
    flat.grad = flat.detach().new_zeros(flat.numel() + room)[: flat.numel()]
    at = 0
    for p in params:
        part = slice(at, at + p.numel())
        p.data = flat.data[part].view_as(p)
        p.grad = flat.grad[part].view_as(p)
        at += p.numel()
    return flat


def norm_of(x: Tensor) -> Tensor:
    """The norm [] of x [n]: that of the norms of its rows of ``ROW`` numbers, so that it is as
    exact as a small tensor's.

    On a CPU torch adds up the squares of all numbers in a few float32: 1e-5 off at a million
    numbers, 3e-3 at 50 million.
    """
    rows = x.numel() // ROW
    if rows < 2:
        return torch.linalg.vector_norm(x)  # type: ignore[no-any-return]
    head, tail = x[: rows * ROW].view(rows, ROW), x[rows * ROW :]
    parts = torch.cat(
        [torch.linalg.vector_norm(head, dim=1), torch.linalg.vector_norm(tail).view(1)]
    )
    return torch.linalg.vector_norm(parts)  # type: ignore[no-any-return]


class Flat(Parameters):
    """Each group's parameters as one tensor with one optimiser. Learners add up their gradients."""

    def hold(self, net: nn.Module, groups: Groups, settings: Optimizer) -> None:
        held, several = groups(net), self.pool.size > 1
        self.net = net
        self.flat = {name: flatten(params, MORE if several else 0) for name, params in held.items()}
        self._buckets = (
            {name: Buckets(self.pool, self.flat[name], held[name]) for name in held}
            if several
            else {}
        )
        self.optimizers = {name: descent(settings, flat) for name, flat in self.flat.items()}

    def backward(
        self, group: str, out: LossOutput, before: LossSums | None, fill: Callable[[Tensor], None]
    ) -> Tensor:
        if not self._buckets:
            return super().backward(group, out, before, fill)
        buckets = self._buckets[group]
        buckets.begin(*added(out, before))
        fill(out.loss)
        buckets.finish()
        return self._mean(group, buckets.more[0], buckets.more[1])

    def gradient(self, group: str) -> Sequence[Tensor]:
        gradient = self.flat[group].grad
        assert gradient is not None
        return [gradient]

    def norm(self, group: str) -> Tensor:
        return norm_of(*self.gradient(group))

    def state(self, group: str) -> Tree:
        return {"params": self.flat[group].detach(), "optimizer": self.optimizers[group].slots}

    def load(self, group: str, state: Tree) -> None:
        self.flat[group].copy_(state["params"])
        self.optimizers[group].load(state["optimizer"])
