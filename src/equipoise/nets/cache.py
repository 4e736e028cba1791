"""Keys and values of texts in progress, one slot each, in memory allocated once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from equipoise.nets.attention import additive
from equipoise.nets.layout import alike

SMALL = 1024  # keys of padding that cost less than another batch


class Written(Protocol):
    """The memory for the keys and values of ``Decoder.prefill``."""

    def places(self, slots: Tensor, position: Tensor) -> Tensor: ...
    def write(self, layer: int, places: Tensor, key: Tensor, value: Tensor) -> None: ...

    # the first keys and values [K, length, D] of a text
    def read_text(self, layer: int, slot: int, length: int) -> tuple[Tensor, Tensor]: ...
    # keys and values [B, K, D] of the tokens at ``position`` [B] of ``slots`` [B]
    def read_tokens(self, layer: int, slots: Tensor, position: Tensor) -> tuple[Tensor, Tensor]: ...


class BySlot:
    """Reading of keys and values that lie by slot."""

    key: Tensor  # [layers, slots, K, length, D]
    value: Tensor

    def read_text(self, layer: int, slot: int, length: int) -> tuple[Tensor, Tensor]:
        """The first ``length`` keys and values [K, length, D] of a text."""
        return self.key[layer, slot, :, :length], self.value[layer, slot, :, :length]

    def read_tokens(self, layer: int, slots: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, K, D] of the tokens at ``position`` [B] of ``slots`` [B]."""
        return self.key[layer][slots, :, position], self.value[layer][slots, :, position]


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of like length in a step of ``decode``."""

    texts: Tensor  # [n] their numbers in the step
    slots: Tensor | slice  # [n]; a slice if they follow each other
    length: int  # of the longest, the new token included
    mask: Tensor | None  # [n, 1, 1, length] -inf behind a text's end; None: all are as long


class Cache(BySlot):
    """Keys and values [layers, slots, K, length, D]."""

    def __init__(
        self,
        layers: int,
        slots: int,
        heads: int,
        length: int,
        size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (layers, slots, heads, length, size)
        self.key, self.value = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        self._flat = tuple(x.view(layers, -1, size) for x in (self.key, self.value))
        self._heads = torch.arange(heads, device=device)

    def places(self, slots: Tensor, position: Tensor) -> Tensor:
        """Where ``write`` puts the tokens at ``position`` [B] of ``slots`` [B]: [B * K]."""
        heads, length = self.key.shape[2:4]
        return ((slots.unsqueeze(1) * heads + self._heads) * length + position.unsqueeze(1)).view(
            -1
        )

    def write(self, layer: int, places: Tensor, key: Tensor, value: Tensor) -> None:
        """Keys and values [B, K, D] of new tokens."""
        for flat, x in zip(self._flat, (key, value)):
            flat[layer].index_copy_(0, places, x.reshape(-1, x.shape[2]).to(flat.dtype))

    def read(self, layer: int, texts: Texts) -> tuple[Tensor, Tensor]:
        """Keys and values [n, K, length, D]."""
        key, value = self.key[layer][:, :, : texts.length], self.value[layer][:, :, : texts.length]
        if isinstance(texts.slots, slice):
            return key[texts.slots], value[texts.slots]
        return key.index_select(0, texts.slots), value.index_select(0, texts.slots)

    def copy(self, source: Tensor, target: Tensor, length: int) -> None:
        """The first ``length`` tokens of slots ``source`` [B] into slots ``target`` [B]."""
        for x in (self.key, self.value):
            x[:, target, :, :length] = x[:, source, :, :length]

    def batches(self, position: Tensor, slots: Tensor) -> list[Texts]:
        """Texts of a step by length, with new tokens at ``position`` [B] of ``slots`` [B]."""
        lengths, where = position.cpu().numpy() + 1, slots.cpu().numpy()
        cut = alike(lengths, small=SMALL)
        if len(cut) == 1:
            cut = [np.arange(len(lengths))]
        else:
            cut = [part[np.argsort(where[part])] for part in cut]  # so that neighbours are found
        found = []
        for part in cut:
            size, slot = lengths[part], where[part]
            length = int(size.max())
            mask = None
            if size.min() < length:
                seen = torch.as_tensor(np.arange(length) < size[:, None], device=position.device)
                mask = additive(seen[:, None, None], self.key.dtype)
            first = int(slot[0])
            follow = np.array_equal(slot, np.arange(first, first + len(slot)))
            index = (
                slice(first, first + len(slot))
                if follow
                else torch.as_tensor(slot, device=slots.device)
            )
            found.append(Texts(torch.as_tensor(part, device=position.device), index, length, mask))
        return found
