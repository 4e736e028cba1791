"""A gated transformer core (GTrXL): rows attend to earlier rows of their own episode."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.nets.block import Block
from equipoise.nets.core import State
from equipoise.nets.torso import linear

GATE_BIAS = 2.0  # b_g of the paper: at first a block passes its input on
WIDER = 4  # units of the position-wise MLP, times size


class GTrXL(nn.Module):
    """Gated Transformer-XL (Parisotto et al. 2019, arXiv:1910.06764, section 3): ``layers`` blocks
    of ``heads`` heads.

    Each block is (equations 5 to 8, with the GRU gate g of section 3.2)

        y = g1(x, relu(attention(norm(x), memory))),   out = g2(y, relu(mlp(norm(y))))

    in which row t attends to the rows t - ``window`` .. t of its episode. Attention scores are
    Transformer-XL's (Dai et al. 2019, arXiv:1901.02860, section 3.3): (q_t + u) k_j + (q_t + v)
    p_{t-j}.

    ==========  ==========================  ======================================================================
    state       shape, float32              what
    ==========  ==========================  ======================================================================
    ``memory``  [B, layers, window, size]   the normalised inputs of each block's last rows, the newest last
    ``held``    [B, 1]                      rows of it that are of the episode in progress; the others are not read
    ==========  ==========================  ======================================================================

    Zeros are the state at the start of an episode. Keys and values are not made: a query is mapped
    to the space of the inputs (q W_k), and the weighted sum of inputs to a value. So a row costs 2
    ``heads * size`` multiplications for each row of its window, not 2 ``size`` squared.

    Deviations: the memory holds normalised inputs (the paper: inputs), so that no row of it is
    normalised again; each p is a parameter (Transformer-XL: a matrix times sines); inside an unroll
    the gradient flows through all rows.
    """  # noqa: E501

    def __init__(
        self, size_in: int, size: int, *, layers: int = 2, heads: int = 4, window: int = 64
    ) -> None:
        if size % heads:
            raise ValueError(
                f"core_heads: expected a divisor of core_size, which is {size}, got {heads}"
            )
        super().__init__()
        self.size, self.window = size, window
        self.into = linear(size_in, size, 1.0)
        self.blocks = nn.ModuleList(Gated(size, heads, window) for _ in range(layers))

    def initial_state(self, batch: int) -> State:
        device = self.into.weight.device
        memory = torch.zeros(batch, len(self.blocks), self.window, self.size, device=device)
        return {"memory": memory, "held": torch.zeros(batch, 1, device=device)}

    def step(self, x: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        """x [B, in], first [B] bool -> [B, size], the new state."""
        y, state = self.unroll(x.unsqueeze(0), first.unsqueeze(0), state)
        return y.squeeze(0), state

    def unroll(self, x: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        """x [T, B, in], first [T, B] bool -> [T, B, size], the state after row T-1."""
        # Place j of a context [B, window + T, size] is a row of the memory below ``window``, and
        # row j - window from there on.
        # not multiplied: no nan survives
        memory = state["memory"].masked_fill(first[0, :, None, None, None], 0.0)
        row = torch.arange(len(first), device=first.device).unsqueeze(1)  # [T, 1]
        place = torch.arange(self.window + len(first), device=first.device)
        start = torch.where(
            first, (row + self.window).to(memory.dtype), self.window - state["held"].view(1, -1)
        ).cummax(0)[0]
        within = (place >= row) & (place <= row + self.window)
        unseen = ~(within & (place >= start.t().unsqueeze(-1)))  # [B, T, window + T]
        y = self.into(x).transpose(0, 1)
        kept: list[Tensor] = []
        for n, block in enumerate(self.blocks):
            y, context = block(y, memory[:, n], unseen)
            kept.append(context[:, len(first) :])
        held = (len(place) - start[-1]).clamp(max=self.window).unsqueeze(1)
        return y.transpose(0, 1), {"memory": torch.stack(kept, 1), "held": held}


class Gated(Block):
    """Attention and an MLP, each behind a norm and before a gate."""

    pairs = (("wide", "narrow"),)

    def __init__(self, size: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.width = heads, size // heads
        self.norm, self.norm_mlp = nn.LayerNorm(size), nn.LayerNorm(size)
        self.query, self.out = linear(size, size, 1.0), linear(size, size, 1.0)
        self.key = linear(size, size, 1.0, bias=False)
        self.value = linear(size, size, 1.0, bias=False)
        # u, v
        self.content, self.place = (
            nn.Parameter(torch.zeros(heads, 1, self.width)) for _ in range(2)
        )
        # p: of window .. 0 rows ago
        self.distance = nn.Parameter(torch.randn(heads, window + 1, self.width) * 0.02)
        self.wide, self.narrow = linear(size, WIDER * size, 1.0), linear(WIDER * size, size, 1.0)
        self.gate, self.gate_mlp = Gate(size), Gate(size)

    def forward(self, x: Tensor, memory: Tensor, unseen: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, T, size], memory [B, window, size], unseen [B, T, window + T] -> y, context."""
        normal = self.norm(x)
        context = torch.cat([memory, normal], 1)
        y = self.gate(x, torch.relu(self._attention(normal, context, unseen)))
        return self.gate_mlp(
            y, torch.relu(self.narrow(torch.relu(self.wide(self.norm_mlp(y)))))
        ), context

    def _attention(self, x: Tensor, context: Tensor, unseen: Tensor) -> Tensor:
        batch, rows, size = x.shape
        places, heads, width = context.shape[1], self.heads, self.width

        def by_head(y: Tensor, last: int) -> Tensor:
            """[heads, B * T, last] -> [B, T * heads, last]."""
            return (
                y.view(heads, batch, rows, last)
                .permute(1, 2, 0, 3)
                .reshape(batch, rows * heads, last)
            )

        query = (self.query(x) * width**-0.5).view(batch * rows, heads, width).transpose(0, 1)
        key = self.key.weight.view(heads, width, size)
        value = self.value.weight.view(heads, width, size)
        scores = torch.bmm(
            by_head(torch.bmm(query + self.content, key), size), context.transpose(1, 2)
        )
        near = torch.bmm(query + self.place, self.distance.transpose(1, 2)).view(
            heads, batch, rows, -1
        )
        # Column d of row t belongs to place t + d: T zeros behind each row, then rows that are one
        # shorter.
        near = (
            F.pad(near, (0, rows))
            .flatten(2)[..., : rows * places]
            .reshape(heads, batch, rows, places)
            .permute(1, 2, 0, 3)
        )
        weights = (
            (scores.view(batch, rows, heads, places) + near)
            .masked_fill(unseen.unsqueeze(2), -torch.inf)
            .softmax(-1)
        )
        seen = torch.bmm(weights.view(batch, rows * heads, places), context)
        seen = seen.view(batch * rows, heads, size).transpose(0, 1)
        mixed = torch.bmm(seen, value.transpose(1, 2)).transpose(0, 1)
        return self.out(mixed.reshape(batch, rows, size))  # type: ignore[no-any-return]


class Gate(nn.Module):
    """The gate of a GRU, ``g(x, y)`` of section 3.2: near x while z is near 0."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.from_y = linear(size, 3 * size, 1.0)  # r, z and the candidate
        self.from_x = linear(size, 2 * size, 1.0, bias=False)
        self.candidate = linear(size, size, 1.0, bias=False)
        self.from_y.bias.data[size : 2 * size] = -GATE_BIAS

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        r, z, h = self.from_y(y).chunk(3, -1)
        r_of_x, z_of_x = self.from_x(x).chunk(2, -1)
        candidate = (h + self.candidate((r + r_of_x).sigmoid() * x)).tanh()
        return torch.lerp(x, candidate, (z + z_of_x).sigmoid())
