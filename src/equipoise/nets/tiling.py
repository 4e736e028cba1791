"""Blocks of a text's queries and tiles of its keys, by position, for attention that is the same
however many texts there are (``invariant.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equipoise.types import Array

QUERIES, KEYS = 8, 32  # positions of a block and of a tile
TOGETHER = 16  # blocks of queries in a product


@dataclass(frozen=True, slots=True)
class Texts:
    """Where the keys of texts [S] lie: position t of a text is row ``base + t``, and from position
    ``prompt`` on row ``start + t - prompt``.
    """

    base: Array
    prompt: Array
    start: Array
    last: Array  # the last position that there is

    def rows(self, text: Array, position: Array) -> Array:
        """The rows of keys at ``position`` [n, KEYS] of texts ``text`` [n]."""
        text = text[:, None]
        position = np.minimum(position, self.last[text])
        prompt = self.prompt[text]
        behind = self.start[text] + position - prompt
        found: Array = np.where(position < prompt, self.base[text] + position, behind)
        return found


@dataclass(frozen=True, slots=True)
class _Product:
    """``TOGETHER`` blocks of queries, and the tiles of their keys."""

    queries: Tensor  # [TOGETHER * QUERIES] rows
    # of each tile: the rows of its keys [TOGETHER * KEYS], and 0 or -inf [TOGETHER, 1, 1, QUERIES,
    # KEYS] for a key that a query sees or not; None: all see all
    tiles: Sequence[tuple[Tensor, Tensor | None]]


@dataclass(frozen=True, slots=True)
class Tiling:
    """The blocks and tiles of an attention, made once for all layers."""

    products: Sequence[_Product]
    place: Tensor  # [N] the place of each query in the blocks, one behind the other

    @classmethod
    def of(cls, text: Array, position: Array, texts: Texts, device: torch.device) -> Tiling:
        """The tiling of queries at ``position`` [N] of texts ``text`` [N]."""
        width = int(position.max(initial=0)) // QUERIES + 1
        # the longest first, so that a product's blocks have about as many tiles
        block = (width - 1 - position // QUERIES) * len(texts.base) + text
        blocks, of = np.unique(block, return_inverse=True)
        place = of * QUERIES + position % QUERIES
        count = len(blocks) + -len(blocks) % TOGETHER
        rows = np.zeros(count * QUERIES, np.int64)
        rows[place] = np.arange(len(position))
        blocks = np.concatenate([blocks, np.repeat(blocks[-1:], count - len(blocks))])
        number, text = width - 1 - blocks // len(texts.base), blocks % len(texts.base)

        def product(at: int) -> _Product:
            part = slice(at, at + TOGETHER)
            where = number[part, None] * QUERIES + np.arange(QUERIES)  # positions of the queries
            tiles = []
            for first in range(0, int(where.max()) + 1, KEYS):
                keys = first + np.arange(KEYS)
                mask = None
                if where.min() < keys[-1]:
                    seen = keys <= where[:, None, None, :, None]
                    mask = torch.as_tensor(
                        np.where(seen, np.float32(0), np.float32(-np.inf)), device=device
                    )
                found = texts.rows(text[part], np.broadcast_to(keys, (TOGETHER, KEYS)))
                tiles.append((torch.as_tensor(found.ravel(), device=device), mask))
            chosen = rows[at * QUERIES : (at + TOGETHER) * QUERIES]
            return _Product(torch.as_tensor(chosen, device=device), tiles)

        products = [product(at) for at in range(0, count, TOGETHER)]
        return cls(products, torch.as_tensor(place, device=device))
