"""Attention over text without padding: each prompt is computed once, and the samples of its group
share its keys and values.

Letters: ``N`` tokens, ``H`` query heads, ``K`` key heads, ``D`` numbers of a head.

======================  ==============================================================================================
where                   how
======================  ==============================================================================================
GPU, bf16 or fp16       torch's ``varlen_attn``, one call
short groups            each group is one sequence, with a mask; float32 on a CPU
else                    causal attention within sequences, and attention from a group's samples to its prompt, each over
                        sequences of like length, padded. Two softmaxes over parts of the keys
                        become one by their log-sum-exps. The gradient of each part is that of
                        attention with the common output and log-sum-exp (FlashAttention: Dao et al.
                        2022, arXiv:2205.14135, appendix B.4), so no matrix of weights is kept.
======================  ==============================================================================================
"""  # noqa: E501

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from equipoise.nets.function import Context
from equipoise.nets.layout import Batch, Layout, Split
from equipoise.nets.precision import exact
from equipoise.private.torch import attention, attention_backward, softmax_backward

EXACT = (torch.float32, torch.float64)


def packed_attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """q [N, H, D], k and v [N, K, D] -> [N, H, D]."""
    if (
        q.device.type == "cuda"
        and q.dtype not in EXACT
        and (attention := varlen_attn()) is not None
    ):
        where = layout.varlen
        k, v = k.index_select(0, where.keys), v.index_select(0, where.keys)
        window = (-1, 0)  # causal; the queries are the last ones of their keys
        return attention(  # type: ignore[no-any-return]
            q,
            k,
            v,
            where.starts,
            where.key_starts,
            where.longest,
            where.longest_keys,
            window_size=window,
            enable_gqa=q.shape[1] != k.shape[1],
        )
    if layout.short and q.dtype in EXACT:
        return _WholeGroups.apply(q, k, v, layout)  # type: ignore[no-any-return,no-untyped-call]
    if layout.short and q.device.type == "cpu":
        # products as small as these take twice as long in bfloat16
        with exact(q.device):
            return packed_attention(q.float(), k.float(), v.float(), layout).to(q.dtype)
    return InParts.apply(q, k, v, layout)  # type: ignore[no-any-return,no-untyped-call]


@functools.cache
def varlen_attn() -> Any:
    """torch's attention over sequences without padding; None if this torch lacks it."""
    try:
        from torch.nn.attention.varlen import varlen_attn as found
    except ImportError:
        return None
    return found


class _WholeGroups(torch.autograd.Function):
    """A batch of [K * groups] products, of all queries that share a key head."""

    @staticmethod
    def forward(ctx: Context, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        heads, keys, size = q.shape[1], k.shape[1], q.shape[2]
        whole = layout.whole
        if (heads, keys) not in layout.cached:
            indices = [whole.heads(batch, heads, keys) for batch in whole.groups]
            layout.cached[heads, keys] = indices, whole.places(heads, keys)
        indices, (place, _) = layout.cached[heads, keys]
        q, k, v = (x.reshape(-1, size) for x in (q, k, v))
        outs, kept = [], []
        for batch, mask, (of_q, of_k) in zip(whole.groups, whole.masks, indices):
            query = q.index_select(0, of_q).view(keys * batch.count, -1, size).mul_(size**-0.5)
            key, value = (
                x.index_select(0, of_k).view(keys * batch.count, -1, size) for x in (k, v)
            )
            scores = torch.bmm(query, key.transpose(1, 2))
            scores.view(keys, batch.count, -1, batch.length, batch.length).add_(mask.unsqueeze(1))
            weights = scores.softmax(-1)
            outs.append(torch.bmm(weights, value).view(-1, size))
            kept += [query, key, value, weights]
        ctx.layout, ctx.heads = layout, (heads, keys)
        ctx.save_for_backward(*kept)
        return _joined(outs).index_select(0, place).view(-1, heads, size)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        heads, keys = ctx.heads
        indices, (place, key_place) = ctx.layout.cached[heads, keys]
        size, kept = grad.shape[2], ctx.saved_tensors
        grad = grad.reshape(-1, size)
        found: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
        for n, (batch, (of_q, _)) in enumerate(zip(ctx.layout.whole.groups, indices)):
            query, key, value, weights = kept[4 * n : 4 * n + 4]
            g = grad.index_select(0, of_q).view(keys * batch.count, -1, size)
            if batch.real is not None:
                g.view(keys, batch.count, -1, batch.length, size).mul_(batch.real[:, None, :, None])
            found[2].append(torch.bmm(weights.transpose(1, 2), g).view(-1, size))
            slope = torch.bmm(g, value.transpose(1, 2))
            slope = softmax_backward(slope, weights)
            found[0].append(torch.bmm(slope, key).mul_(size**-0.5).view(-1, size))
            found[1].append(torch.bmm(slope.transpose(1, 2), query).view(-1, size))
        dq, dk, dv = (
            _joined(x).index_select(0, at) for x, at in zip(found, (place, key_place, key_place))
        )
        return dq.view(-1, heads, size), dk.view(-1, keys, size), dv.view(-1, keys, size), None


class InParts(torch.autograd.Function):
    """Attention to a group's prompt and within each sequence; the gradient takes any ``out`` with
    its log-sum-exps.
    """

    @staticmethod
    def forward(ctx: Context, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        split = layout.split
        parts = [
            attend(*(_heads(x, batch) for x in (q, k, v)), causal=True) for batch in split.causal
        ]
        out, lse = (
            _rows([part[n] for part in parts]).index_select(0, split.place) for n in range(2)
        )
        if split.queries:
            parts = [
                attend(
                    _heads(q, queries), _heads(k, keys), _heads(v, keys), mask=_mask(keys, q.dtype)
                )
                for queries, keys in zip(split.queries, split.prompts)
            ]
            other, other_lse = (
                _rows([part[n] for part in parts]).index_select(0, split.sampled_place)
                for n in range(2)
            )
            own = lse.index_select(0, split.sampled)
            # weight of the prompt's keys together
            share = torch.sigmoid(other_lse - own).unsqueeze(-1)
            lse.index_copy_(0, split.sampled, torch.logaddexp(own, other_lse))
            mixed = torch.lerp(
                out.index_select(0, split.sampled).to(share.dtype), other.to(share.dtype), share
            )
            out.index_copy_(0, split.sampled, mixed.to(out.dtype))
        ctx.layout = layout
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        split: Split = ctx.layout.split
        q, k, v, out, lse = ctx.saved_tensors
        parts = [
            attend_backward(
                _heads(grad, batch, True),
                *(_heads(x, batch) for x in (q, k, v, out, lse)),
                causal=True,
            )
            for batch in split.causal
        ]
        dq, dk, dv = (
            _rows([part[n] for part in parts]).index_select(0, split.place) for n in range(3)
        )
        if split.queries:
            parts = [
                attend_backward(
                    _heads(grad, queries, True),
                    _heads(q, queries),
                    _heads(k, keys),
                    _heads(v, keys),
                    _heads(out, queries),
                    _heads(lse, queries),
                    mask=_mask(keys, q.dtype),
                )
                for queries, keys in zip(split.queries, split.prompts)
            ]
            dq.index_add_(
                0,
                split.sampled,
                _rows([part[0] for part in parts]).index_select(0, split.sampled_place),
            )
            for n, d in ((1, dk), (2, dv)):
                d.index_add_(
                    0,
                    split.prompted,
                    _rows([part[n] for part in parts]).index_select(0, split.prompted_place),
                )
        return dq, dk, dv, None


def _heads(x: Tensor, batch: Batch, zero: bool = False) -> Tensor:
    """Rows of x [N, H(, D)] -> [count, H, length(, D)]; ``zero``: padding is 0."""
    found = x.index_select(0, batch.rows).view(batch.count, batch.length, *x.shape[1:])
    if zero and batch.real is not None:
        found.mul_(batch.real[:, :, None, None])
    return found.transpose(1, 2)


def _rows(parts: list[Tensor]) -> Tensor:
    """[count, H, length(, D)] each -> [places, H(, D)]."""
    return _joined([x.transpose(1, 2).flatten(0, 1) for x in parts])


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _mask(keys: Batch, dtype: torch.dtype) -> Tensor | None:
    return None if keys.real is None else additive(keys.real[:, None, None], dtype)


def additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where ``seen``, else -inf, to add to scores."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


# ---------------------------------------------------------------------------------------- one batch


def fused(q: Tensor) -> bool:
    """Is there a kernel of torch that also gives log-sum-exps, and takes them for the gradient?"""
    return q.device.type == "cpu"


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """q [B, H, L, D], k and v [B, K, T, D] -> [B, H, L, D] and the log-sum-exp of the scores [B, H,
    L].

    ``causal``: L = T, a query sees no later key. ``mask`` [B, 1, 1, T] is added to the scores.
    """
    k, v = _repeated(k, q.shape[1]), _repeated(v, q.shape[1])
    if fused(q):
        mask = mask if mask is None else mask.expand(-1, -1, q.shape[2], -1)
        return attention(q, k, v, causal, mask)
    scores = _scores(q, k, causal, mask)
    lse = scores.logsumexp(-1)
    return (scores - lse.unsqueeze(-1)).exp().to(v.dtype) @ v, lse


def attend_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, if these keys are a part of the keys of ``out`` and ``lse``."""
    heads = k.shape[1]
    k, v = _repeated(k, q.shape[1]), _repeated(v, q.shape[1])
    if fused(q):
        mask = mask if mask is None else mask.expand(-1, -1, q.shape[2], -1)
        dq, dk, dv = attention_backward(grad, q, k, v, out, lse, causal, mask)
    else:
        p = (_scores(q, k, causal, mask) - lse.unsqueeze(-1)).exp()
        ds = (
            p
            * (grad @ v.transpose(-1, -2) - (grad * out).sum(-1, keepdim=True))
            * q.shape[-1] ** -0.5
        )
        ds, p = ds.to(q.dtype), p.to(q.dtype)
        dq, dk, dv = ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ grad
    return dq, _summed(dk, heads), _summed(dv, heads)


def _scores(q: Tensor, k: Tensor, causal: bool, mask: Tensor | None) -> Tensor:
    scores: Tensor = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    scores = scores if scores.dtype == torch.float64 else scores.float()
    if causal:
        scores = scores.masked_fill(
            torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1), -torch.inf
        )
    return scores if mask is None else scores + mask


def _repeated(x: Tensor, heads: int) -> Tensor:
    """Keys [B, K, T, D] for each of ``heads`` query heads."""
    return (
        x
        if x.shape[1] == heads
        else x.unsqueeze(2).expand(-1, -1, heads // x.shape[1], -1, -1).flatten(1, 2)
    )


def _summed(x: Tensor, heads: int) -> Tensor:
    """Gradients of repeated keys -> of the keys [B, K, T, D]."""
    return x if x.shape[1] == heads else x.view(x.shape[0], heads, -1, *x.shape[2:]).sum(2)
