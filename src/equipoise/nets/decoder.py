"""A decoder for text: the family of Llama, Mistral, Qwen2 and Qwen3, by Hugging Face's names.

RMSNorm, rotary positions, grouped queries, SwiGLU. Qwen2 has a bias on queries, keys and values,
Qwen3 a norm on queries and keys. The engine and the learner run the same layers: they differ in the
source of a layer's keys and values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.hints import hint, shortened
from equipoise.nets import invariant
from equipoise.nets.attention import attend, packed_attention
from equipoise.nets.block import Block
from equipoise.nets.cache import Cache, Written
from equipoise.nets.layout import Layout
from equipoise.nets.pieces import Linear, apply, put_together, rms_norm, rotate, together
from equipoise.nets.threads import one_thread
from equipoise.types.packed import Packed

FAMILIES = ("llama", "qwen2", "qwen3")
ROPE_TYPES = {  # and what each needs
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}

MOST_LAYERS, MOST, LONGEST = 1024, 1 << 24, 1 << 40  # of layers, of another size, of positions
RANGES = {  # of the numbers that are no sizes; outside of them angles and norms are no numbers
    "rope_theta": (1.0, 1e12),
    "rms_norm_eps": (1e-30, 1.0),
    "initializer_range": (0.0, 1e3),
    "factor": (1e-6, 1e6),
    "low_freq_factor": (1e-6, 1e6),
    "high_freq_factor": (1e-6, 1e6),
    "original_max_position_embeddings": (1, LONGEST),
}

# layer, q [N, H, D], k and v [N, K, D] -> [N, H, D]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """The shape of a decoder, as in Hugging Face's ``config.json``."""

    family: Literal["llama", "qwen2", "qwen3"] = "llama"
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int = 2048
    rope_theta: float = 10_000.0
    rope_scaling: Mapping[str, str | float] | None = None  # {"rope_type": one of ROPE_TYPES, ...}
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    # on queries, keys and values, and but for qwen2 on what attention puts out
    attention_bias: bool = False
    initializer_range: float = 0.02  # standard deviation of fresh weights

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(
                "model family: expected one of a decoder's, got "
                f"{self.family!r}{hint(self.family, FAMILIES)}"
            )
        for name, value in asdict(self).items():
            if isinstance(value, int | float) and not isinstance(value, bool) and not value > 0:
                raise ValueError(f"model {name}: expected more than 0, got {value}")
            if isinstance(value, int) and value > (most := _most(name)):
                raise ValueError(f"model {name}: must be at most {most:,}, got {_short(value)}")
            if isinstance(value, float):
                _check_range(f"model {name}", name, value)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                "model num_key_value_heads: expected a divisor of "
                f"num_attention_heads={self.num_attention_heads}, got "
                f"{self.num_key_value_heads}; the nearest is "
                f"{math.gcd(self.num_attention_heads, self.num_key_value_heads)}"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"model head_dim: expected an even number, got {self.head_dim}; the nearest is "
                f"{self.head_dim + 1}"
            )
        scaling = self.rope_scaling or {}
        kind = str(scaling.get("rope_type", "default"))
        if kind not in ROPE_TYPES:
            raise ValueError(
                "model rope_scaling: expected a known rope_type, got "
                f"{kind!r}{hint(kind, ROPE_TYPES)}"
            )
        for name in ROPE_TYPES[kind]:
            if not isinstance(scaling.get(name), int | float):
                raise ValueError(
                    f"model rope_scaling: expected {name!r} with a number, got "
                    f"{scaling.get(name)!r}"
                )
            _check_range(f"model rope_scaling: {name}", name, scaling[name])
        if kind == "llama3" and scaling["low_freq_factor"] == scaling["high_freq_factor"]:
            raise ValueError(
                "model rope_scaling: low_freq_factor: must differ from high_freq_factor, got "
                f"{scaling['low_freq_factor']} for both"
            )


def _most(name: str) -> int:
    return {"num_hidden_layers": MOST_LAYERS, "max_position_embeddings": LONGEST}.get(name, MOST)


def _check_range(where: str, name: str, value: float | str) -> None:
    least, most = RANGES[name]
    if not isinstance(value, str) and not least <= value <= most:
        raise ValueError(f"{where}: must be from {least:g} to {most:g}, got {_short(value)}")


def _short(number: float) -> str:
    return shortened(str(number), 30)


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


class Attention(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        c, bias = config, config.attention_bias
        self.q_proj = nn.Linear(c.hidden_size, c.num_attention_heads * c.head_dim, bias)
        self.k_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias)
        self.v_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias)
        self.o_proj = nn.Linear(
            c.num_attention_heads * c.head_dim, c.hidden_size, bias and c.family != "qwen2"
        )
        if c.family == "qwen3":
            self.q_norm, self.k_norm = Norm(c.head_dim), Norm(c.head_dim)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, False)


class Layer(Block):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.self_attn = Attention(config)
        self.mlp = SwiGLU(config)
        self.input_layernorm = Norm(config.hidden_size)
        self.post_attention_layernorm = Norm(config.hidden_size)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        attention: Callable[[Tensor, Tensor, Tensor], Tensor],
        linear: Linear | None = None,
    ) -> Tensor:
        """x [N, hidden], cosines and signed sines [N, 1, D] -> [N, hidden].

        ``linear``: computes the linear layers; None: they do it themselves.
        """
        c, n, a, m = self.config, len(x), self.self_attn, self.mlp
        heads, keys, eps = c.num_attention_heads, c.num_key_value_heads, c.rms_norm_eps
        y = rms_norm(x, self.input_layernorm.weight, eps)
        qkv = together(y, a.q_proj, a.k_proj, a.v_proj, linear=linear)
        qkv = qkv.view(n, -1, c.head_dim)
        q, k, v = qkv[:, :heads], qkv[:, heads : heads + keys], qkv[:, heads + keys :]
        if c.family == "qwen3":
            q, k = rms_norm(q, a.q_norm.weight, eps), rms_norm(k, a.k_norm.weight, eps)
        out = attention(rotate(q, cos, sin), rotate(k, cos, sin), v)
        x = x + apply(a.o_proj, out.reshape(n, -1), linear)
        y = rms_norm(x, self.post_attention_layernorm.weight, eps)
        gate, up = together(y, m.gate_proj, m.up_proj, linear=linear).chunk(2, 1)
        return x + apply(m.down_proj, F.silu(gate) * up, linear)


class Model(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = Norm(config.hidden_size)


class Decoder(nn.Module):
    """Tokens in, hidden states and logits out."""

    # has a token the same bits whatever is computed with it (``invariant.py``)?
    batch_invariant: bool = False

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Model(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=config.initializer_range)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for layer in cast("Iterable[Layer]", self.model.layers):
            put_together(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
            put_together(layer.mlp.gate_proj, layer.mlp.up_proj)
        # cosines and signed sines [length, 1, D], made when needed
        self._angles: tuple[Tensor, Tensor] | None = None

    @property
    def head(self) -> Tensor:
        """The weight [vocabulary, hidden] from hidden states to logits."""
        return (
            self.model.embed_tokens.weight
            if self.config.tie_word_embeddings
            else self.lm_head.weight
        )

    def hidden(self, data: Packed, layout: Layout | None = None) -> Tensor:
        """The last hidden state [N, hidden] of each token, of its prompt and sample so far."""
        layout = Layout.of(data) if layout is None else layout
        device = self.head.device
        token, position = (torch.as_tensor(x, device=device) for x in (data.token, data.position))
        attention = self._packed_attention
        return self._layers(token, position, lambda _, q, k, v: attention(q, k, v, layout))

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., hidden] -> [..., vocabulary] float32 (float64 if the net is)."""
        if self.batch_invariant:
            with one_thread():
                logits = invariant.linear(hidden.flatten(0, -2), self.head)
                logits = logits.view(*hidden.shape[:-1], -1)
        else:
            logits = F.linear(hidden, self.head)
        return logits if logits.dtype == torch.float64 else logits.float()

    def cache(self, slots: int, length: int, dtype: torch.dtype | None = None) -> Cache:
        """Room for ``slots`` texts of ``length`` tokens."""
        c, dtype = self.config, self.head.dtype if dtype is None else dtype
        return Cache(
            c.num_hidden_layers,
            slots,
            c.num_key_value_heads,
            length,
            c.head_dim,
            dtype,
            self.head.device,
        )

    @torch.no_grad()
    def prefill(self, token: Tensor, lengths: Tensor, cache: Written, slots: Tensor) -> Tensor:
        """token [B, P], padded at the end, of which ``lengths`` [B] are real -> the last one's
        hidden state [B, hidden].

        Their keys and values are in ``cache`` afterwards, in ``slots`` [B] from 0 on.
        """
        real = torch.arange(token.shape[1], device=token.device) < lengths.unsqueeze(1)
        text, position = real.nonzero(as_tuple=True)
        layout = Layout.plain(lengths.tolist(), token.device)
        places = cache.places(slots[text], position)

        def stored(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.write(layer, places, k, v)
            return self._packed_attention(q, k, v, layout)

        return self._layers(token[real], position, stored)[lengths.cumsum(0) - 1]

    @torch.no_grad()
    def extend(self, token: Tensor, begin: int, cache: Written, slot: int) -> Tensor:
        """token [n], the next ones of the text in ``slot``, at places from ``begin`` on -> the last
        one's hidden state [hidden].

        A long prompt is computed in parts, so that its activations have a bound.
        """
        position = torch.arange(begin, begin + len(token), device=token.device)
        slots = torch.full_like(position, slot)
        if self.batch_invariant:
            return self.go_on(token, position, cache, slots)[-1]
        places = cache.places(slots, position)
        seen = position.unsqueeze(1) >= torch.arange(begin + len(token), device=token.device)

        def stored(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.write(layer, places, k, v)
            keys, values = (
                x.unsqueeze(0).to(q.dtype) for x in cache.read_text(layer, slot, seen.shape[1])
            )
            out = F.scaled_dot_product_attention(
                q.transpose(0, 1).unsqueeze(0), keys, values, seen, enable_gqa=True
            )
            return out.squeeze(0).transpose(0, 1)

        return self._layers(token, position, stored)[-1]

    @torch.no_grad()
    def decode(self, token: Tensor, position: Tensor, cache: Cache, slots: Tensor) -> Tensor:
        """token [B], the next one of the texts in ``slots`` [B], at ``position`` [B] -> its hidden
        state [B, hidden].

        Texts are attended to in batches of like length. The keys of slots that follow each other
        are read where they are.
        """
        if self.batch_invariant:
            return self.go_on(token, position, cache, slots)
        batches = cache.batches(position, slots)
        order = None if len(batches) == 1 else torch.cat([batch.texts for batch in batches])
        if order is not None:
            token, position, slots = token[order], position[order], slots[order]
        places = cache.places(slots, position)

        def cached(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.write(layer, places, k, v)
            # the queries that share a key head are queries of one head
            grouped = q.view(q.shape[0], k.shape[1], -1, q.shape[2]).to(cache.key.dtype)
            found, at = [], 0
            for batch in batches:
                part = grouped[at : at + len(batch.texts)]
                found.append(attend(part, *cache.read(layer, batch), mask=batch.mask)[0])
                at += len(part)
            return (torch.cat(found) if len(found) > 1 else found[0]).to(v.dtype)

        hidden = self._layers(token, position, cached)
        return hidden if order is None else torch.empty_like(hidden).index_copy_(0, order, hidden)

    @torch.no_grad()
    def go_on(self, token: Tensor, position: Tensor, cache: Written, slots: Tensor) -> Tensor:
        """token [N], the next ones, at ``position`` [N] of the texts in ``slots`` [N] -> their
        batch-invariant hidden states [N, hidden].
        """
        places = cache.places(slots, position)
        attention = invariant.cached(cache, slots, position, self.config.num_key_value_heads)

        def stored(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.write(layer, places, k, v)
            return attention(layer, q)

        return self._layers(token, position, stored)

    @property
    def _packed_attention(self) -> Callable[[Tensor, Tensor, Tensor, Layout], Tensor]:
        return invariant.packed_attention if self.batch_invariant else packed_attention

    def _layers(self, token: Tensor, position: Tensor, attention: Attend) -> Tensor:
        """token and position [N] -> [N, hidden]."""
        if not self.batch_invariant:
            return self._computed(token, position, attention)
        count = len(token)

        def within(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return invariant.padded(attention(layer, q[:count], k[:count], v[:count]))

        with one_thread():
            token, position = invariant.padded(token), invariant.padded(position)
            return self._computed(token, position, within, invariant.linear)[:count]

    def _computed(
        self, token: Tensor, position: Tensor, attention: Attend, linear: Linear | None = None
    ) -> Tensor:
        cos, sin = self._rotation(position)
        # tied to a head that an engine rounds, it is rounded too
        x = F.embedding(token, self.model.embed_tokens.weight).to(self.model.norm.weight.dtype)
        for i, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, partial(attention, i), linear)
        return rms_norm(x, self.model.norm.weight, self.config.rms_norm_eps)

    def _rotation(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines [N, 1, D] of positions [N]."""
        longest = int(position.max()) + 1
        if (
            self._angles is None
            or len(self._angles[0]) < longest
            or self._angles[0].device != position.device
        ):
            length = max(longest, 256, 2 * len(self._angles[0]) if self._angles else 0)
            length += -length % invariant.ROWS  # a place's angles do not depend on the others
            with torch.inference_mode(False):  # kept, and also used with gradients
                angle = torch.outer(
                    torch.arange(length, dtype=torch.float32), frequencies(self.config)
                )
                angle = torch.cat([angle, angle], 1).unsqueeze(1).to(position.device)
                sin = angle.sin()
                sin[..., : self.config.head_dim // 2].neg_()
                self._angles = angle.cos(), sin
        return self._angles[0].index_select(0, position), self._angles[1].index_select(0, position)


def frequencies(config: DecoderConfig) -> Tensor:
    """The angle [D / 2] by which each pair of a head's numbers turns from a place to the next."""
    turns = 1.0 / config.rope_theta ** (
        torch.arange(0, config.head_dim, 2).float() / config.head_dim
    )
    scaling = dict(config.rope_scaling or {})
    kind = scaling.get("rope_type", "default")
    if kind == "linear":
        return turns / float(scaling["factor"])
    if kind == "llama3":  # low frequencies slowed, high ones left, between them a ramp
        waves = 2 * math.pi / turns
        low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
        ramp = (
            (float(scaling["original_max_position_embeddings"]) / waves - low) / (high - low)
        ).clamp(0, 1)
        return turns * (ramp + (1 - ramp) / float(scaling["factor"]))
    return turns
