"""Pairs as packed tokens, and networks whose weights are a formula, so that other programs have the
same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from equipoise.nets.decoder import DecoderConfig
from equipoise.nets.packing import packed_texts
from equipoise.types import Packed

SHAPE = DecoderConfig(
    vocab_size=10,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    intermediate_size=24,
    max_position_embeddings=64,
)
Net = TypeVar("Net", bound=nn.Module)


def filled(net: Net, seed: int) -> Net:
    """The network with weights that are cosines of their places."""
    with torch.no_grad():
        for number, (name, one) in enumerate(sorted(net.named_parameters())):
            places = torch.arange(one.numel(), dtype=torch.float64)
            wave = torch.cos(places * (0.7 + 0.01 * number) + 5.0 * seed).view(one.shape)
            one.copy_(1.0 + 0.1 * wave if "norm" in name else 0.3 * wave)
    return net


def measured(gradients: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Four numbers of each gradient, which differ where gradients do."""
    found = {}
    for name, one in gradients.items():
        flat = one.detach().double().flatten()
        places = torch.arange(len(flat), dtype=torch.float64)
        waves = [torch.cos(places * turn) for turn in (0.3, 1.1, 2.3)]
        found[name] = [float(flat.norm()), *(float((flat * wave).sum()) for wave in waves)]
    return found


def pairs_of(
    groups: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]],
    values: Sequence[tuple[float, float]],
    logp: Tensor | None = None,
) -> Packed:
    """Groups of a prompt and two completions, with the numbers of both and a reference's ``logp``
    [N].
    """
    data = packed_texts(groups)
    reward = torch.zeros(len(data.token))
    for number, value in enumerate(one for pair in values for one in pair):
        reward[(data.sample == number).nonzero()[-1]] = value
    changes: dict[str, Any] = {"reward": reward} | ({} if logp is None else {"logp": logp})
    return replace(data, **changes)
