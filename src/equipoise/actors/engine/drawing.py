"""Drawing tokens: uniform numbers by counter, and the inverse of the cumulative distribution."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.seeds import mix, uniform_bits

I64 = NDArray[np.int64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# tokens whose chances are added up before they are searched: a cumulative sum of a whole vocabulary
# is slow
_BLOCK = 256


def group_keys(seed: int, group: I64) -> I64:
    """Keys [B] of groups [B], from which ``index_keys`` makes the keys of their samples."""
    key = mix(np.array([seed], np.int64).view(np.uint64) + _GOLDEN)
    return mix((key ^ group.view(np.uint64)) * _GOLDEN).view(np.int64)


def index_keys(key: I64, index: I64) -> I64:
    """Keys [B] of the samples with these numbers in the groups ``key`` [B]."""
    return mix((key.view(np.uint64) ^ index.view(np.uint64)) * _GOLDEN).view(np.int64)


def sample_keys(seed: int, group: I64, index: I64) -> I64:
    """Keys [B] of the samples (group, index) [B]; they are bits, and their sign means nothing."""
    return index_keys(group_keys(seed, group), index)


def uniform(key: I64, count: I64) -> NDArray[np.float64]:
    """A number in [0, 1) for token ``count`` [B], from 1 on, of the samples ``key`` [B]; it depends
    on nothing else.
    """
    return uniform_bits(mix(key.view(np.uint64) ^ (count.view(np.uint64) * _GOLDEN)))


def torch_log_softmax(logits: Tensor) -> Tensor:
    """[B, V] -> [B, V]."""
    return torch.log_softmax(logits, -1)


def draw(
    logits: Tensor,
    temperature: float,
    number: Tensor | None,
    log_softmax: Callable[[Tensor], Tensor] = torch_log_softmax,
) -> tuple[Tensor, Tensor]:
    """Draw a token of each row of ``logits`` [B, V]: the first with more than ``number`` [B] of the
    mass up to it.

    ``number`` None: take the token with the highest logit. Returns tokens [B] int64 and their
    log-probabilities [B] float32, both of softmax(logits / temperature). A token without mass is
    never drawn. Logits that are nan give a token and nan.
    """
    logp = log_softmax(logits if temperature == 1.0 else logits / temperature)
    token = logits.argmax(-1) if number is None else inverse(logp.exp(), number)
    token = token.clamp_max(logits.shape[1] - 1)  # past the end where logits are nan
    return token, logp.gather(1, token[:, None])[:, 0]


def inverse(chance: Tensor, number: Tensor) -> Tensor:
    """Token [B] int64: the place in ``chance`` [B, V] where its running sum first exceeds
    ``number`` [B] times the total.
    """
    rows, size = chance.shape
    if size <= 2 * _BLOCK:
        total = chance.cumsum(-1, dtype=torch.float64)
        return torch.searchsorted(total, (number * total[:, -1])[:, None], right=True)[:, 0]
    padded = torch.nn.functional.pad(chance, (0, -size % _BLOCK)).view(rows, -1, _BLOCK)
    total = padded.sum(-1).cumsum(-1, dtype=torch.float64)
    wanted = (number * total[:, -1])[:, None]
    block = torch.searchsorted(total, wanted, right=True)
    before = torch.where(block > 0, total.gather(1, (block - 1).clamp_min(0)), 0.0)
    within = padded.gather(1, block[:, :, None].expand(-1, 1, _BLOCK))[:, 0].cumsum(
        -1, dtype=torch.float64
    )
    # The running sum of a block may end, by rounding, below the block's own sum: then take the last
    # token with mass.
    most = torch.nextafter(within[:, -1:], within.new_zeros(()))
    inner = torch.searchsorted(within, torch.minimum(wanted - before, most), right=True)
    return (block * _BLOCK + inner)[:, 0]
