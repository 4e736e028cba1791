"""One token of many texts at a time: the layers of a ``Decoder`` as few operations, on keys and
values that it has room for.

A step of a small model costs what its operations cost to call. Here weights that take the same
input lie side by side, so that one product computes queries, keys and values; they lie by input,
since a product with few rows reads them so in half the time on a CPU; keys and values lie by place,
so that one copy stores both; and texts are the first rows of the cache, so that attention reads it
where it lies. ``Decoder.decode`` explains it at length.

In bf16 the products are bfloat16, as the learner's are, and what lies between the layers is
float32. On a CPU keys, values and attention are float32 too: torch's attention for one query takes
1.3 to 8 times as long in bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.nets.cache import BySlot, Written
from equipoise.nets.decoder import Decoder, Layer
from equipoise.nets.packing import packed_texts
from equipoise.nets.pages import PAGE, Pages
from equipoise.nets.precision import products

OUTPUTS = 64  # of a weight matrix that are copied at once
CHECKED = 48  # tokens that a check computes twice
PIECE = 1 << 18  # numbers of others


class ByPlace(BySlot):
    """Keys and values [layers, slots, length, 2 K, D], which ``Decoder.prefill`` writes."""

    def __init__(self, store: Tensor, heads: int) -> None:
        by_head = store.transpose(2, 3)
        # [layers, slots, K, length, D], as a ``Cache`` has them
        self.key, self.value = by_head[:, :, :heads], by_head[:, :, heads:]
        self._flat, self._length = store.flatten(1, 2), store.shape[2]

    def places(self, slots: Tensor, position: Tensor) -> Tensor:
        """Where ``write`` puts the tokens at ``position`` [B] of ``slots`` [B]."""
        return slots * self._length + position

    def write(self, layer: int, places: Tensor, key: Tensor, value: Tensor) -> None:
        """Keys and values [B, K, D] of new tokens."""
        both = torch.cat([key, value], 1)
        self._flat[layer].index_copy_(0, places, both.to(self._flat.dtype))


class Passes:
    """Passes of a network whose products may be rounded, with its keys and values."""

    def __init__(self, net: Decoder, cache: Written) -> None:
        self._net, self.cache, self._autocast = net, cache, products(net.head)

    def prefill(self, token: Tensor, lengths: Tensor, slots: Tensor) -> Tensor:
        """As ``Decoder.prefill``."""
        with self._autocast:
            return self._net.prefill(token, lengths, self.cache, slots)

    def extend(self, token: Tensor, begin: int, slot: int) -> Tensor:
        """As ``Decoder.extend``."""
        with self._autocast:
            return self._net.extend(token, begin, self.cache, slot)

    def logits(self, hidden: Tensor) -> Tensor:
        """As ``Decoder.logits``."""
        with self._autocast:
            return self._net.logits(hidden)


class Room(Passes):
    """Room for the keys and values of ``slots`` texts of at most ``length`` tokens."""

    def __init__(
        self,
        net: Decoder,
        slots: int,
        length: int,
        *,
        pages: int = 0,
        other: Room | None = None,
    ) -> None:
        """``net``: its products may be rounded (``room.rounded``). ``pages``: of all texts
        together; 0: each text has room for ``length`` tokens. ``other``: the room of other weights,
        whose texts go on.
        """
        c, device = net.config, net.head.device
        self._slots, self._length = slots, length
        self._kv = c.num_key_value_heads
        texts = (pages, PAGE) if pages else (slots, length)
        shape = (c.num_hidden_layers, *texts, 2 * self._kv, c.head_dim)
        self._store: Tensor = (
            torch.zeros(shape, dtype=kv_dtype(net), device=device)
            if other is None
            else other._store
        )
        # None: each text has its own room
        self.pages: Pages | None = None
        if other is not None:
            self.pages = other.pages
        elif pages:
            self.pages = Pages(self._store, slots, length)
        super().__init__(net, self.pages or ByPlace(self._store, self._kv))

    def twin(self, net: Decoder) -> Self:
        """The same texts under the weights of another network."""
        return type(self)(net, self._slots, self._length, other=self)

    def give_back(self) -> None:
        """Free the memory of keys and values until ``have_room``; there must be no texts."""
        self._store.untyped_storage().resize_(0)

    def have_room(self) -> None:
        """Allocate the memory of keys and values again if it was freed."""
        storage, nbytes = self._store.untyped_storage(), self._store.nbytes
        if storage.nbytes() < nbytes:
            storage.resize_(nbytes)
            # what is masked is multiplied by 0, so it must be finite
            self._store.zero_()

    def copy(self, source: Tensor, target: Tensor, length: int) -> None:
        """The first ``length`` places of texts ``source`` [B] into texts ``target`` [B]."""
        self._store[:, target, :length] = self._store[:, source, :length]


def kv_dtype(net: Decoder) -> torch.dtype:
    """The format of a network's keys and values."""
    on_cpu = net.head.device.type == "cpu"
    return net.model.norm.weight.dtype if on_cpu else net.head.dtype


class Exact(Room):
    """Decoding by the layers of a batch-invariant ``net`` as they are, and no others."""

    def decode(self, token: Tensor, position: Tensor, shortest: int, longest: int) -> Tensor:
        """As ``Decoding.decode``."""
        slots = torch.arange(len(token), device=token.device)
        return self._net.go_on(token, position, self.cache, slots)

    @torch.no_grad()
    def check(self) -> None:
        """RuntimeError if this machine gives a token other bits among others than alone.

        It overwrites the first text.
        """
        net, size = self._net, self._net.config.vocab_size
        token = (torch.arange(min(self._length, CHECKED)) * 7 % size).to(net.head.device)
        half, slot = len(token) - len(token) // 4, token.new_zeros(1)
        if self.pages is not None:
            self.pages.grow(np.zeros(1, np.int64), np.array([len(token)]))
        text = packed_texts([(token[:half].tolist(), [token[half:].tolist()])])
        want = net.logits(net.hidden(text))
        net.prefill(token[None, :half], slot + half, self.cache, slot)
        for at in range(half, len(token)):
            got = self.decode(token[at : at + 1], slot + at, at, at)
            if not torch.equal(net.logits(got)[0], want[at]):
                raise RuntimeError(
                    "source.batch_invariant: must be false on this machine, which gives token "
                    f"{at} of a text other bits alone than among the {at} before it"
                )
        if self.pages is not None:
            self.pages.drop(np.zeros(1, np.int64))


class Decoding(Room):
    """``net`` with room for texts, for the fewest operations.

    The parameters of ``net`` become views of the joined ones: values written into them in place are
    used from then on.
    """

    def __init__(
        self,
        net: Decoder,
        slots: int,
        length: int,
        *,
        pages: int = 0,
        other: Room | None = None,
    ) -> None:
        """As ``Room``."""
        super().__init__(net, slots, length, pages=pages, other=other)
        c, weight = net.config, net.model.norm.weight
        # the format of products, if it is another than that of what lies between them
        self._low = None if net.head.dtype == weight.dtype else net.head.dtype
        self._heads, self._size = c.num_attention_heads, c.head_dim
        # the place of each text in a layer's store
        self._numbers = torch.arange(slots, device=weight.device)
        self._first = self._numbers * length
        self._cos, self._sin = net._rotation(torch.arange(length, device=weight.device))
        # On a CPU torch's own norm is a dozen operations; the one here is half as many, and right
        # in float32.
        plain = weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.float64)
        self._eps = torch.tensor(c.rms_norm_eps, dtype=weight.dtype) if plain else None
        self._places = torch.arange(length, device=weight.device)
        self._layers = [
            _Joined(cast(Layer, layer), store)
            for layer, store in zip(net.model.layers, self._store, strict=True)
        ]

    def decode(self, token: Tensor, position: Tensor, shortest: int, longest: int) -> Tensor:
        """token [B], the next one of texts 0 to B - 1, at ``position`` [B] -> its hidden state [B,
        hidden].

        ``shortest``, ``longest``: the lowest and the highest of the positions.
        """
        n, heads, kv, size = len(token), self._heads, self._kv, self._size
        cos, sin = self._cos.index_select(0, position), self._sin.index_select(0, position)
        pages = self.pages
        index = None if pages is None else pages.first(n, longest + 1)
        where = (
            self._first[:n] + position
            if pages is None
            else pages.places(self._numbers[:n], position)
        )
        low, kept = self._low, self._store.dtype
        x = F.embedding(token, self._net.model.embed_tokens.weight)
        if low is not None:
            x = x.to(self._cos.dtype)
        mask = None
        if shortest < longest:
            hidden = self._places[: longest + 1] > position.unsqueeze(1)
            mask = torch.zeros(hidden.shape, dtype=kept, device=x.device).masked_fill_(
                hidden, -torch.inf
            )
            mask = mask[:, None, None].expand(-1, -1, heads // kv, -1)
        for layer in self._layers:
            y = self._input(x, layer.before)
            qkv = y @ layer.qkv if layer.bias is None else torch.addmm(layer.bias, y, layer.qkv)
            if low is not None:
                qkv = qkv.to(x.dtype)
            qkv = qkv.view(n, heads + 2 * kv, size)
            turned = qkv[:, : heads + kv]
            if layer.norms is not None:
                for part, weight in zip(
                    torch.split(turned, [heads, kv], 1), layer.norms, strict=True
                ):
                    part.copy_(self._norm(part, weight))
            torch.addcmul(turned * cos, turned.roll(size // 2, -1), sin, out=turned)
            if qkv.dtype != kept:
                qkv = qkv.to(kept)
            layer.flat.index_copy_(0, where, qkv[:, heads:])
            past = (
                layer.store[:n, : longest + 1].transpose(1, 2)
                if index is None
                else Pages.read_texts(layer.store, index, longest + 1)
            )
            # the queries that share a key head are queries of one head
            q = qkv[:, :heads].view(n, kv, -1, size)
            out = F.scaled_dot_product_attention(q, past[:, :kv], past[:, kv:], mask).reshape(n, -1)
            x = self._added(x, out, layer.out)
            if layer.out_bias is not None:
                x += layer.out_bias
            gate, up = (self._input(x, layer.after) @ layer.gate_up).chunk(2, 1)
            x = self._added(x, F.silu(gate).mul_(up), layer.down)
        return self._norm(x, self._net.model.norm.weight)

    def _input(self, x: Tensor, weight: Tensor) -> Tensor:
        """The input of a product: ``x`` after a norm."""
        y = self._norm(x, weight)
        return y if self._low is None else y.to(self._low)

    def _added(self, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """x + y @ weight."""
        return torch.addmm(x, y, weight) if self._low is None else x + y.to(self._low) @ weight

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        if self._eps is None:
            return F.rms_norm(x, weight.shape, weight, self._net.config.rms_norm_eps)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return (x * torch.addcmul(self._eps, length, length, value=1 / x.shape[-1]).rsqrt_()).mul_(
            weight
        )


class _Joined:
    """A layer's weights [in, out], some joined, and its keys and values by place."""

    def __init__(self, layer: Layer, store: Tensor) -> None:
        a, m = layer.self_attn, layer.mlp
        # [slots, length, 2 K, D] and [slots * length, 2 K, D]
        self.store, self.flat = store, store.flatten(0, 1)
        self.before = layer.input_layernorm.weight
        self.after = layer.post_attention_layernorm.weight
        projections = (a.q_proj, a.k_proj, a.v_proj)
        self.qkv = _joined([one.weight for one in projections])
        self.out = _joined([a.o_proj.weight])
        bias: Tensor | None = a.q_proj.bias
        self.bias = None if bias is None else _joined([one.bias for one in projections])
        self.out_bias: Tensor | None = a.o_proj.bias
        self.norms = (a.q_norm.weight, a.k_norm.weight) if layer.config.family == "qwen3" else None
        self.gate_up = _joined([m.gate_proj.weight, m.up_proj.weight])
        self.down = _joined([m.down_proj.weight])


def pieces(view: Tensor) -> Iterator[slice]:
    """Parts of a parameter [out, ...], or of joined weights, that take a fraction of a millisecond
    to copy.

    A transposed part is copied some outputs at a time: in a copy at once on a CPU lines leave the
    caches before they are full (``benchmarks/text.py publish``).
    """
    rows = (
        OUTPUTS if not view.is_contiguous() else max(1, PIECE * len(view) // max(view.numel(), 1))
    )
    yield from (slice(first, first + rows) for first in range(0, len(view), rows))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Join weights [out, in] to [in, outs], or biases; each parameter becomes a view."""
    whole = torch.cat([part.data for part in parts])
    if whole.ndim == 2:
        whole = whole.T.contiguous()
    for part, view in zip(
        parts, torch.split(whole, [len(part) for part in parts], -1), strict=True
    ):
        part.data = view.T if part.ndim == 2 else view
    return whole
