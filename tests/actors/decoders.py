"""A small decoder of the tests of engines."""

from __future__ import annotations

import torch

from equipoise.nets.decoder import Decoder, DecoderConfig


def small_decoder(*, words: int, length: int) -> Decoder:
    """A decoder of two layers that knows ``words`` tokens, the same in each call."""
    torch.manual_seed(0)
    return Decoder(
        DecoderConfig(
            family="qwen3",
            vocab_size=words,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            intermediate_size=24,
            max_position_embeddings=length,
            initializer_range=0.5,
        )
    )
