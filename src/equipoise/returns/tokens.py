"""Returns of the tokens that the model chose, for samples that lie packed one behind the other,
[N].

A return that ends where ``mask`` is False is right for seams, but a tool's tokens interrupt a
sample without ending it. So the chosen tokens are compacted to one column [n, 1], in which a
discount of 0 ends each sample, and the results scattered back.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from equipoise.returns.gae import gae
from equipoise.returns.rows import Returns


@torch.no_grad()
def token_gae(
    *,
    reward: Float[Tensor, " N"],
    value: Float[Tensor, " N"],
    gamma: float,
    lambda_: float,
    sample: Int[Tensor, " N"],
    chosen: Bool[Tensor, " N"],
) -> Returns:
    """``gae`` over the chosen tokens of each sample, [N]; 0 elsewhere.

    ``value`` is V of what was seen when the token was drawn. Nothing is worth anything after a
    sample's last token, even if a limit cut it. Rewards of tokens that were not chosen count
    nowhere: see ``at_last``. A sample's tokens lie together.

    No gradient flows out. Raises ValueError on a wrong shape.
    """
    check(reward, value=value, sample=sample, chosen=chosen)
    kept = chosen.nonzero().squeeze(1)
    if not len(kept):
        return Returns(target=torch.zeros_like(value), advantage=torch.zeros_like(value))
    discount = gamma * (~_last(sample[kept])).to(value.dtype)
    seen = torch.cat([value[kept], value.new_zeros(1)])[:, None]
    out = gae(reward=reward[kept, None], discount=discount[:, None], value=seen, lambda_=lambda_)
    empty = out.target.new_zeros(len(value))
    return Returns(
        target=empty.index_copy(0, kept, out.target[:, 0]),
        advantage=empty.index_copy(0, kept, out.advantage[:, 0]),
    )


@torch.no_grad()
def ends(
    *, sample: Int[Tensor, " N"], chosen: Bool[Tensor, " N"]
) -> tuple[Bool[Tensor, " N"], Bool[Tensor, " N"]]:
    """The first and the last chosen token of each sample. ValueError on a wrong shape."""
    check(sample, chosen=chosen)
    kept = chosen.nonzero().squeeze(1)
    first, last = torch.zeros_like(chosen), torch.zeros_like(chosen)
    if len(kept):
        last[kept] = (ending := _last(sample[kept]))
        first[kept] = ending.roll(1)
    return first, last


@torch.no_grad()
def at_last(
    *, value: Float[Tensor, " M"], sample: Int[Tensor, " N"], chosen: Bool[Tensor, " N"]
) -> Float[Tensor, " N"]:
    """Each sample's value at its last chosen token, 0 elsewhere: a tool's words are no action, so
    no reward goes to them.

    Raises ValueError on a wrong shape.
    """
    _, last = ends(sample=sample, chosen=chosen)
    return torch.where(last, value[sample.clamp(min=0)], 0.0)


def _last(sample: Tensor) -> Tensor:
    """[n] bool: does the next token belong to another sample, or is there none?"""
    last = torch.ones_like(sample, dtype=torch.bool)
    last[:-1] = sample[1:] != sample[:-1]
    return last


def check(first: Tensor, **others: Tensor) -> None:
    for name, x in others.items():
        if first.ndim != 1 or x.shape != first.shape:
            raise ValueError(f"{name}: expected [N] = {list(first.shape)}, got {list(x.shape)}")
    if others["chosen"].dtype != torch.bool:
        raise ValueError(f"chosen: expected bool, got {others['chosen'].dtype}")
