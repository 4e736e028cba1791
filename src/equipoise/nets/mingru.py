"""minGRU: a core whose gates read the input alone, so that T rows are one recurrence."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equipoise.nets.core import State, spread_time_constants
from equipoise.nets.function import Context
from equipoise.nets.torso import linear


class MinGRU(nn.Module):
    """minGRU (Feng et al. 2024, arXiv:2410.01201, section 3.1), ``layers`` of them.

        z_t = sigmoid(W_z x_t),   h_t = (1 - z_t) h_{t-1} + z_t W_h x_t

    h_{t-1} stands in neither gate, so all gates of an unroll are one product of matrices, and h is
    a linear recurrence (``recurrence``). The first layer reads x; each further one reads the output
    so far, normalised, and adds its h to it.

    The state is ``{"h"}``, float32 [B, layers, size], zeros at the start of an episode. Weights
    orthogonal, biases 0; ``span``: as of ``Core``, here the bias of z. The recurrence is computed
    as it stands, not by logarithms as in the paper's appendix B: coefficients between 0 and 1 need
    no logarithms in float32, and W_h x may be negative.
    """

    def __init__(self, size_in: int, size: int, *, layers: int = 1, span: int = 0) -> None:
        super().__init__()
        self.size = size
        self.gates = nn.ModuleList(
            linear(size if n else size_in, 2 * size, 1.0) for n in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(layers - 1))
        for gate in self.gates if span else ():
            gate.get_parameter("bias").data[:size] = -spread_time_constants(size, span)

    def initial_state(self, batch: int) -> State:
        return {
            "h": torch.zeros(
                batch, len(self.gates), self.size, device=next(self.parameters()).device
            )
        }

    def step(self, x: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        """x [B, in], first [B] bool -> [B, size], the new state."""
        before = state["h"].masked_fill(first[:, None, None], 0.0)
        after: list[Tensor] = []
        for n in range(len(self.gates)):
            z, candidate = self._gates(n, x)
            after.append(torch.lerp(before[:, n], candidate, z))
            x = x + after[n] if n else after[n]
        return x, {"h": torch.stack(after, 1)}

    def unroll(self, x: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        """x [T, B, in], first [T, B] bool -> [T, B, size], the state after row T-1."""
        before = state["h"].masked_fill(first[0, :, None, None], 0.0)
        after: list[Tensor] = []
        for n in range(len(self.gates)):
            z, candidate = self._gates(n, x)
            h = recurrence(
                (1.0 - z).masked_fill(first.unsqueeze(-1), 0.0), z * candidate, before[:, n]
            )
            after.append(h[-1])
            x = x + h if n else h
        return x, {"h": torch.stack(after, 1)}

    def _gates(self, n: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """z and W_h x of layer n, each [..., size]."""
        z, candidate = self.gates[n](self.norms[n - 1](x) if n else x).chunk(2, -1)
        return z.sigmoid(), candidate


def recurrence(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """h_t = a_t h_{t-1} + b_t of a and b [T, B, n], from ``h`` [B, n] before row 0."""
    return _Recurrence.apply(a, b, h)  # type: ignore[no-any-return,no-untyped-call]


class _Recurrence(torch.autograd.Function):
    """The gradient is the same recurrence backwards in time: g_t = dL/dh_t + a_{t+1} g_{t+1}."""

    @staticmethod
    def forward(ctx: Context, a: Tensor, b: Tensor, h: Tensor) -> Tensor:
        out = scan(a, torch.cat([torch.addcmul(b[:1], a[:1], h), b[1:]]))
        ctx.save_for_backward(a, h, out)
        return out

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, h, out = ctx.saved_tensors
        following = torch.cat([torch.zeros_like(a[:1]), a[1:].flip(0)])
        g = scan(following, grad.flip(0)).flip(0)
        return g * torch.cat([h[None], out[:-1]]), g, g[0] * a[0]


def scan(a: Tensor, b: Tensor) -> Tensor:
    """h_t = a_t h_{t-1} + b_t from 0, [T, ...]: row after row on a CPU, else in parallel."""
    return (loop if a.device.type == "cpu" else doubling)(a, b)


def loop(a: Tensor, b: Tensor) -> Tensor:
    """The scan in T calls: on a CPU, rows of up to 4,096 numbers cost no more than calls."""
    h = b.clone(memory_format=torch.contiguous_format)
    rows = h.unbind(0)
    for before, coefficient, now in zip(rows, a[1:].unbind(0), rows[1:], strict=False):
        now.addcmul_(coefficient, before)
    return h


def doubling(a: Tensor, b: Tensor) -> Tensor:
    """The scan in log2(T) rounds (Hillis and Steele 1986, Data parallel algorithms), for devices on
    which calls are the cost.

    After the round of stride s row t is the sum over its last 2s rows, and ``a`` holds the products
    of as many coefficients.
    """
    stride = 1
    while stride < len(b):
        b = torch.cat([b[:stride], torch.addcmul(b[stride:], a[stride:], b[:-stride])])
        a = torch.cat([a[:stride], a[stride:] * a[:-stride]])
        stride *= 2
    return b
