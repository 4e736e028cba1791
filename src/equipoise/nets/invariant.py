"""Batch-invariant layers: a row's result has the same bits, however many rows are computed with it.

A product of matrices adds in an order that depends on the matrices' shape, so a token that is drawn
alone and the same token among the learner's differ in their last bits. Here each product has one
shape, whatever the batch:

==============  ===========================================================================================
part            how
==============  ===========================================================================================
linear layers   blocks of ``ROWS`` rows, the last one padded
attention       blocks of ``QUERIES`` positions of a text by tiles of ``KEYS`` positions, in ascending
                order, with a running maximum and sum (FlashAttention: Dao et al. 2022, arXiv:2205.14135).
                A token's place in its block and in its tile depends on its position alone.
the rest        by rows, with a multiple of ``ROWS`` rows in all: torch computes what is left over behind its
                vectors by other instructions
==============  ===========================================================================================

All of it uses one thread, since threads divide sums. The backward pass is torch's own.
(He et al. 2025, Defeating nondeterminism in LLM inference, has the problem and this remedy for GPUs.)
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.nets.attention import InParts
from equipoise.nets.cache import Written
from equipoise.nets.function import Context
from equipoise.nets.layout import Layout
from equipoise.nets.threads import one_thread
from equipoise.nets.tiling import KEYS, QUERIES, TOGETHER, Texts, Tiling

ROWS = 32  # of a block of a linear layer; a multiple of the numbers in two vectors of any processor
# outputs: with fewer, MKL computes some rows of a block otherwise than others
LEAST = 16
ALIGNED = 64  # bytes, as torch's own memory

# rows [n] of keys -> keys and values [n, K, D]
Gather = Callable[[Tensor], tuple[Tensor, Tensor]]


def padded(x: Tensor) -> Tensor:
    """x [N, ...] with zeros behind it, up to a multiple of ``ROWS`` rows."""
    more = -len(x) % ROWS
    return torch.cat([x, x.new_zeros(more, *x.shape[1:])]) if more else x


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [N, in], weight [out, in], bias [out] -> [N, out]."""
    if torch.is_grad_enabled():
        return _Linear.apply(x, weight, bias)  # type: ignore[no-any-return,no-untyped-call]
    return _linear(x, weight, bias)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if len(weight) < LEAST:
        more = LEAST - len(weight)
        biased = None if bias is None else F.pad(bias, (0, more))
        return _linear(x, F.pad(weight, (0, 0, 0, more)), biased)[:, : len(weight)]
    rows, turned = _aligned(padded(x)), _aligned(weight).t()
    out = rows.new_empty(len(rows), len(weight))
    for block, into in zip(torch.split(rows, ROWS), torch.split(out, ROWS), strict=True):
        torch.mm(block, turned, out=into)
    if bias is not None:
        out += bias
    return out[: len(x)]


def _aligned(x: Tensor) -> Tensor:
    """A matrix whose numbers follow each other in memory, from an even address on."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % ALIGNED else x


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        _, of_weight, of_bias = ctx.needs_input_grad
        return (
            grad @ weight,
            grad.t() @ x if of_weight else None,
            grad.sum(0) if of_bias else None,
        )


def log_softmax(logits: Tensor) -> Tensor:
    """[N, V] -> [N, V]."""
    with one_thread():
        blocks = torch.split(padded(logits), ROWS)
        return torch.cat([block.log_softmax(1) for block in blocks])[: len(logits)]


# ---------------------------------------------------------------------------------------- attention


def tiled(q: Tensor, keys: int, gather: Gather, tiling: Tiling) -> tuple[Tensor, Tensor]:
    """q [N, H, D], ``keys`` heads of keys -> [N, H, D] and the log-sum-exp of the scores [N, H]."""
    heads, size = q.shape[1:]
    shape = TOGETHER, QUERIES, keys, heads // keys, size
    outs, lses = [], []
    for product in tiling.products:
        query = q.index_select(0, product.queries).mul_(size**-0.5)
        # the queries that share a key head are queries of one head
        query = query.view(shape).permute(0, 2, 3, 1, 4).reshape(TOGETHER * keys, -1, size)
        total = most = out = query.new_zeros(())
        for number, (rows, mask) in enumerate(product.tiles):
            key, value = (_by_head(x) for x in gather(rows))
            scores = torch.bmm(query, key.transpose(1, 2))
            if mask is not None:
                scores.view(TOGETHER, keys, -1, QUERIES, KEYS).add_(mask)
            highest = scores.amax(-1, keepdim=True)
            if number:
                highest = torch.maximum(most, highest)
            chance = scores.sub_(highest).exp_()
            added, mass = torch.bmm(chance, value), chance.sum(-1, keepdim=True)
            if number:
                shrunk = most.sub_(highest).exp_()
                added, mass = added.add_(out.mul_(shrunk)), mass.add_(total.mul_(shrunk))
            out, total, most = added, mass, highest
        back = TOGETHER, keys, heads // keys, QUERIES
        out, lse = out / total, most + total.log()
        outs.append(out.view(*back, size).permute(0, 3, 1, 2, 4).reshape(-1, heads, size))
        lses.append(lse.view(back).permute(0, 3, 1, 2).reshape(-1, heads))
    return torch.cat(outs).index_select(0, tiling.place), torch.cat(lses).index_select(
        0, tiling.place
    )


def _by_head(x: Tensor) -> Tensor:
    """[TOGETHER * KEYS, K, D] -> [TOGETHER * K, KEYS, D]."""
    by_head = x.view(TOGETHER, KEYS, *x.shape[1:]).transpose(1, 2).contiguous()
    return by_head.flatten(0, 1)


def packed_attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """As the function of ``attention`` of this name: q [N, H, D], k and v [N, K, D] -> [N, H,
    D].
    """
    return _Attention.apply(q, k, v, layout)  # type: ignore[no-any-return,no-untyped-call]


class _Attention(InParts):
    @staticmethod
    def forward(ctx: Context, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        def gather(rows: Tensor) -> tuple[Tensor, Tensor]:
            return k.index_select(0, rows), v.index_select(0, rows)

        out, lse = tiled(q, k.shape[1], gather, layout.tiling)
        ctx.layout = layout
        ctx.save_for_backward(q, k, v, out, lse)
        return out


def cached(
    cache: Written, slots: Tensor, position: Tensor, keys: int
) -> Callable[[int, Tensor], Tensor]:
    """Attention of queries [N, H, D] of a layer, at ``position`` [N] of the texts in ``slots`` [N],
    to the text's ``keys`` heads of keys in ``cache`` so far.
    """
    slot, text = np.unique(slots.cpu().numpy(), return_inverse=True)
    where = position.cpu().numpy()
    length = int(where.max()) + 1  # by which the texts' places are counted
    last = np.zeros_like(slot)
    np.maximum.at(last, text, where)
    begin = slot * length
    tiling = Tiling.of(text, where, Texts(begin, last + 1, begin, last), slots.device)

    def attention(layer: int, q: Tensor) -> Tensor:
        def gather(rows: Tensor) -> tuple[Tensor, Tensor]:
            return cache.read_tokens(layer, rows // length, rows % length)

        return tiled(q, keys, gather, tiling)[0]

    return attention
