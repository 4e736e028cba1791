"""The model of a server: its network and tokenizer, and the source of newer weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from equipoise.nets.decoder import Decoder, DecoderConfig
from equipoise.serving.chat.settings import TextSettings
from equipoise.types.packed import Tokenizer

LONGEST = 4096  # most tokens of a prompt and its answer, if no setting gives the number


class WeightSource(Protocol):
    """A source of newer weights."""

    def newer(self, version: str) -> tuple[str, Mapping[str, Tensor]] | None:
        """Return the newest version and its weights; None if ``version`` is the newest.

        OSError or ValueError if the newest version cannot be read.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model to serve."""

    name: str
    version: str
    net: Decoder
    tokenizer: Tokenizer
    positions: int  # most tokens of a prompt and its answer
    limit: int  # most tokens of an answer, if a request gives no number
    temperature: float = 1.0  # if a request gives none
    stop: tuple[str, ...] = ()  # if a request gives none
    template: Mapping[str, object] = field(default_factory=dict)  # arguments of the chat template
    source: WeightSource | None = None


def context_of(model: Model, settings: TextSettings, rows: int) -> int:
    """Return the most tokens of a prompt and its answer.

    ValueError if the model has fewer positions, or if the keys and values of ``rows`` such texts
    take more than half of this machine's memory.
    """
    length = settings.context or min(model.positions, LONGEST)
    if length > model.positions:
        raise ValueError(
            f"--context: must be at most {model.positions:,}, the model's positions, got {length:,}"
        )
    c, memory = model.net.config, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if settings.device == "cpu" and isinstance(c, DecoderConfig):
        token_bytes = 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * 4
        if (needed := token_bytes * length * rows) > memory // 2:
            raise ValueError(
                f"--batch and --context: must leave half of {memory / 2**30:.0f} GiB of memory, "
                f"got {rows:,} texts of {length:,} tokens, {needed / 2**30:,.0f} GiB of keys and "
                f"values; try --batch {max(1, rows * memory // 2 // needed)}"
            )
    return length


def check_finite(version: str, params: Mapping[str, Tensor]) -> None:
    """Raise ValueError if weights have nan or infinities."""
    for name, x in params.items():
        if x.is_floating_point() and not torch.isfinite(x).all():
            raise ValueError(f"{version}: {name}: must be finite numbers, got nan or infinities")
