"""Log-probabilities and entropies of tokens, in chunks to bound the memory of logits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from equipoise.nets import invariant
from equipoise.nets.decoder import Decoder
from equipoise.nets.function import Context
from equipoise.nets.hub_decoder import HubDecoder
from equipoise.nets.layout import Layout
from equipoise.nets.threads import one_thread
from equipoise.types.packed import Packed


def token_logp(
    net: Decoder,
    data: Packed,
    *,
    temperature: float = 1.0,
    chunk: int = 1024,
    entropy: bool = True,
    layout: Layout | None = None,
    hidden: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The log-probability [N] of each chosen token, and the entropy [N] of what it was drawn from;
    0 elsewhere.

    Both float32 and of softmax(logits / temperature). ``layout`` and ``hidden``: given if the
    caller has them already. Without ``entropy`` the second is zeros.
    """
    layout = Layout.of(data) if layout is None else layout
    hidden = net.hidden(data, layout) if hidden is None else hidden
    chosen = torch.as_tensor(data.chosen, device=hidden.device).nonzero().squeeze(1)
    target = torch.as_tensor(data.token, device=hidden.device).index_select(0, chosen)
    before = hidden.index_select(0, layout.previous.index_select(0, chosen))
    if isinstance(net, HubDecoder) and not net.plain:
        logp, spread = logits_logp(
            net.logits, before, target, temperature=temperature, chunk=chunk, entropy=entropy
        )
    else:
        logp, spread = head_logp(
            before,
            net.head,
            target,
            temperature=temperature,
            chunk=chunk,
            entropy=entropy,
            batch_invariant=net.batch_invariant,
        )
    zeros = torch.zeros(len(layout.previous), dtype=logp.dtype, device=logp.device)
    return zeros.index_copy(0, chosen, logp), zeros.index_copy(
        0, chosen, spread
    ) if entropy else zeros


def head_logp(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int = 1024,
    entropy: bool = True,
    batch_invariant: bool = False,
) -> tuple[Tensor, Tensor]:
    """hidden [n, hidden], weight [V, hidden], target [n] -> logp [n], entropy [n]."""
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    log_softmax = _invariant if batch_invariant else _log_softmax
    return _HeadLogp.apply(  # type: ignore[no-any-return,no-untyped-call]
        hidden, weight, target, temperature, chunk, entropy, log_softmax
    )


def logits_logp(
    logits: Callable[[Tensor], Tensor],
    hidden: Tensor,
    target: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int = 1024,
    entropy: bool = True,
) -> tuple[Tensor, Tensor]:
    """As ``head_logp``, for a head that is more than a product; backward computes logits again."""

    def of(hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logp = (logits(hidden) / temperature).log_softmax(1)
        chosen = logp.gather(1, target.unsqueeze(1)).squeeze(1)
        spread = -(logp.exp() * logp).sum(1) if entropy else torch.zeros_like(chosen)
        return chosen, spread

    parts = [
        checkpoint(of, hidden[at : at + chunk], target[at : at + chunk], use_reentrant=False)
        for at in range(0, len(hidden), chunk)
    ] or [of(hidden, target)]
    logps, spreads = zip(*parts)
    return torch.cat(logps), torch.cat(spreads)


class _HeadLogp(torch.autograd.Function):
    """With z = logits / T and p = softmax(z): d logp / dz_j = [j = target] - p_j,  d H / dz_j =
    -p_j (log p_j + H).
    """

    @staticmethod
    def forward(
        ctx: Context,
        hidden: Tensor,
        weight: Tensor,
        target: Tensor,
        temperature: float,
        chunk: int,
        entropy: bool,
        log_softmax: Callable[[Tensor, Tensor, float], Tensor],
    ) -> tuple[Tensor, Tensor]:
        logps, spreads = [], []
        for at in range(0, len(hidden), chunk):
            part = slice(at, at + chunk)
            logp = log_softmax(hidden[part], weight, temperature)
            logps.append(logp.gather(1, target[part].unsqueeze(1)).squeeze(1))
            if entropy:
                spreads.append(-(logp.exp() * logp).sum(1))
        logp = torch.cat(logps) if logps else hidden.new_zeros(0)
        spread = torch.cat(spreads) if spreads else torch.zeros_like(logp)
        ctx.save_for_backward(hidden, weight, target, spread)
        ctx.temperature, ctx.chunk, ctx.entropy = temperature, chunk, entropy
        if not entropy:
            ctx.mark_non_differentiable(spread)
        return logp, spread

    @staticmethod
    def backward(
        ctx: Context, grad_logp: Tensor, grad_spread: Tensor
    ) -> tuple[Tensor, Tensor | None, None, None, None, None, None]:
        hidden, weight, target, spread = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        learned = ctx.needs_input_grad[1]
        grad_weight = torch.zeros_like(weight, dtype=grad_logp.dtype) if learned else None
        for at in range(0, len(hidden), ctx.chunk):
            part = slice(at, at + ctx.chunk)
            logp = _log_softmax(hidden[part], weight, ctx.temperature)
            p, g = logp.exp(), grad_logp[part].unsqueeze(1)
            if ctx.entropy:
                slope = (logp + spread[part].unsqueeze(1)) * grad_spread[part].unsqueeze(1) + g
            else:
                slope = g
            z = (p * slope).neg_()
            z.scatter_add_(1, target[part].unsqueeze(1), g)
            z = z.div_(ctx.temperature).to(weight.dtype)
            torch.mm(z, weight, out=grad_hidden[part])
            if grad_weight is not None:
                grad_weight += z.t() @ hidden[part]
        whole = None if grad_weight is None else grad_weight.to(weight.dtype)
        return grad_hidden, whole, None, None, None, None, None


def _invariant(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    with one_thread():
        logits = invariant.linear(hidden, weight)
        return invariant.log_softmax(logits / temperature if temperature != 1.0 else logits)


def _log_softmax(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    logits = hidden @ weight.t()
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return (logits / temperature if temperature != 1.0 else logits).log_softmax(1)
