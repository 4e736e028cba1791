"""Decoding in few operations gives what ``Decoder.decode`` gives."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from equipoise.nets.decoder import Decoder, DecoderConfig
from equipoise.nets.decoding import Decoding

FAMILIES: list[dict[str, Any]] = [
    {"family": "llama", "tie_word_embeddings": False},
    {"family": "llama", "attention_bias": True},
    {"family": "qwen2", "attention_bias": True, "num_key_value_heads": 1},
    {"family": "qwen3", "rope_theta": 1e6},
]


def _net(**changes: Any) -> Decoder:
    torch.manual_seed(0)
    shape = {
        "vocab_size": 37,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 40,
        "max_position_embeddings": 64,
    }
    return _moved(Decoder(DecoderConfig(**shape | changes)))


def _moved(net: Decoder) -> Decoder:
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
    return net


@pytest.mark.few(4)
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_it_gives_what_the_decoder_gives(family: dict[str, Any]) -> None:
    net = _net(**family)
    decoding, twin = Decoding(net, 5, 16), copy.deepcopy(net)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), twin.parameters(), strict=True))
    for _ in range(2):
        cache, token, slots = twin.cache(5, 16), torch.randint(37, (4, 9)), torch.arange(4)
        for position in (torch.tensor([8, 3, 5, 1]), torch.full((4,), 6)):
            last = token.gather(1, position[:, None])[:, 0]
            wanted = twin.prefill(token, position + 1, cache, slots)
            net.prefill(token, position.clamp_min(1), decoding.cache, slots)
            found = decoding.decode(last, position, int(position.min()), int(position.max()))
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(
                found, twin.decode(last, position, cache, slots), atol=1e-5, rtol=1e-5
            )
            for layer in range(net.config.num_hidden_layers):
                ours, plain = (
                    one.read_text(layer, 0, int(position[0])) for one in (decoding.cache, cache)
                )
                torch.testing.assert_close(ours, plain)
        twin.load_state_dict(_moved(net).state_dict())  # written in place: used at once


@torch.inference_mode()
def test_slots_are_copied() -> None:
    net = _net()
    decoding = Decoding(net, 5, 16)
    net.prefill(torch.randint(37, (1, 9)), torch.tensor([9]), decoding.cache, torch.tensor([4]))
    decoding.copy(torch.tensor([4, 4]), torch.tensor([0, 1]), 9)
    out = decoding.decode(torch.tensor([7, 7]), torch.tensor([9, 9]), 9, 9)
    keys = [decoding.cache.read_text(1, slot, 9)[0] for slot in (1, 4)]
    assert torch.equal(out[0], out[1]) and torch.equal(*keys)


@torch.inference_mode()
def test_memory_that_was_given_back_is_there_again_and_finite() -> None:
    net = _net()
    decoding = Decoding(net, 5, 16)
    decoding._store.fill_(torch.nan)
    nbytes = decoding._store.nbytes
    decoding.give_back()
    assert decoding._store.untyped_storage().nbytes() == 0
    decoding.have_room()
    assert decoding._store.untyped_storage().nbytes() == nbytes
    # what is masked is multiplied by 0
    assert not decoding._store.any() and not decoding.cache.read_text(0, 4, 16)[0].any()
    decoding._store.fill_(1.0)
    decoding.have_room()  # there is room: texts stay
    assert decoding.cache.read_text(0, 4, 16)[1].all()
