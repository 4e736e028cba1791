"""Keys and values in pages: a text has as many as its present length needs, and texts that begin
alike share the pages of their beginning.

A page has room for ``PAGE`` tokens. A shared page is full, so nobody writes into it again. The
table of pages is on the host; a copy of it on the device is made again after a change.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

I64 = NDArray[np.int64]
PAGE = 16  # tokens, as in vLLM


def pages_of(tokens: int) -> int:
    """The pages that a text of ``tokens`` tokens needs."""
    return -(-tokens // PAGE)


class Pages:
    """``Written`` for ``slots`` texts of at most ``length`` tokens, in ``pages`` pages."""

    def __init__(self, store: Tensor, slots: int, length: int) -> None:
        """``store`` [layers, pages, PAGE, 2 K, D], keys before values."""
        self.store, self._kv = store, store.shape[3] // 2
        self._flat = store.flatten(1, 2)
        self._table = np.zeros((slots, pages_of(length)), np.int64)
        self._count = np.zeros(slots, np.int64)  # pages of each text
        self._users = np.zeros(store.shape[1], np.int64)  # texts of each page
        self._free = list(range(store.shape[1]))[::-1]
        self._on_device: Tensor | None = None

    # -------------------------------------------------------------------------------------- numbers

    @property
    def free(self) -> int:
        """The number of free pages."""
        return len(self._free)

    @property
    def total(self) -> int:
        return len(self._users)

    def held(self, slot: int) -> int:
        """The number of pages of a text."""
        return int(self._count[slot])

    def needed(self, slots: I64, tokens: I64) -> I64:
        """How many more pages these texts need for ``tokens`` [n] tokens each."""
        more: I64 = np.maximum(-(-tokens // PAGE) - self._count[slots], 0)
        return more

    # ---------------------------------------------------------------------------------------- pages

    def grow(self, slots: I64, tokens: I64) -> None:
        """Give texts pages for ``tokens`` [n] tokens each. There must be enough."""
        for slot, more in zip(slots.tolist(), self.needed(slots, tokens).tolist(), strict=True):
            for _ in range(more):
                page = self._free.pop()
                self._users[page] = 1
                self._table[slot, self._count[slot]] = page
                self._count[slot] += 1
                self._on_device = None

    def share(self, source: I64, target: I64, tokens: I64) -> None:
        """Let texts ``target`` [n], which have no pages, begin with the first ``tokens`` [n] tokens
        of texts ``source`` [n]: full pages are shared, and a begun page is copied.
        """
        begun = list[tuple[int, int]]()
        for of, to, size in zip(source.tolist(), target.tolist(), tokens.tolist(), strict=True):
            if of == to:
                continue
            full = size // PAGE
            self._table[to, :full] = self._table[of, :full]
            self._users[self._table[of, :full]] += 1
            self._count[to], self._on_device = full, None
            if size % PAGE:
                self.grow(np.array([to]), np.array([size]))
                begun.append((int(self._table[of, full]), int(self._table[to, full])))
        if begun:
            old, new = torch.tensor(begun, device=self.store.device).T
            self.store[:, new] = self.store[:, old]

    def move(self, source: I64, target: I64) -> None:
        """Put texts ``source`` [n] in the places of ``target`` [n], which have no pages."""
        self._table[target], self._count[target] = self._table[source], self._count[source]
        self._table[source], self._count[source], self._on_device = 0, 0, None

    def drop(self, slots: I64) -> None:
        """Free the pages of texts that no other text shares."""
        for slot in slots.tolist():
            pages = self._table[slot, : self._count[slot]]
            self._users[pages] -= 1
            self._free += pages[self._users[pages] == 0].tolist()
        self._table[slots], self._count[slots], self._on_device = 0, 0, None

    # ------------------------------------------------------------------------------ keys and values

    @property
    def _pages(self) -> Tensor:
        if self._on_device is None:
            self._on_device = torch.from_numpy(self._table).to(self.store.device, copy=True)
        return self._on_device

    def places(self, slots: Tensor, position: Tensor) -> Tensor:
        """Where ``write`` puts the tokens at ``position`` [B] of ``slots`` [B]."""
        return self._pages[slots, position // PAGE] * PAGE + position % PAGE

    def write(self, layer: int, places: Tensor, key: Tensor, value: Tensor) -> None:
        """Keys and values [B, K, D] of new tokens."""
        both = torch.cat([key, value], 1)
        self._flat[layer].index_copy_(0, places, both.to(self._flat.dtype))

    def read_text(self, layer: int, slot: int, length: int) -> tuple[Tensor, Tensor]:
        """The first ``length`` keys and values [K, length, D] of a text."""
        found = self.read_texts(self.store[layer], self._pages[slot : slot + 1], length)[0]
        return found[: self._kv], found[self._kv :]

    def read_tokens(self, layer: int, slots: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, K, D] of the tokens at ``position`` [B] of ``slots`` [B]."""
        found = self._flat[layer].index_select(0, self.places(slots, position))
        return found[:, : self._kv], found[:, self._kv :]

    def first(self, texts: int, length: int) -> Tensor:
        """The pages [texts, n] of the first ``length`` tokens of the first ``texts`` texts."""
        return self._pages[:texts, : pages_of(length)]

    @staticmethod
    def read_texts(store: Tensor, pages: Tensor, length: int) -> Tensor:
        """Keys and values [texts, 2 K, length, D] of a layer's ``store`` [pages, PAGE, 2 K, D]."""
        found = store.index_select(0, pages.reshape(-1))
        return found.view(len(pages), -1, *store.shape[2:])[:, :length].transpose(1, 2)
