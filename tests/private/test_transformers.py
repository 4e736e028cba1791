"""The private name of transformers: it is there, and names the layers."""

from __future__ import annotations

import pytest
from torch import nn

from equipoise.private.transformers import layers


def test_the_layers_of_a_model_are_those_that_transformers_keeps_whole() -> None:
    hub = pytest.importorskip("transformers")
    config = hub.GPT2Config(vocab_size=8, n_embd=8, n_layer=3, n_head=2, n_positions=8)
    module = hub.AutoModelForCausalLM.from_config(config)
    assert layers(module) == list(module.transformer.h)
    assert layers(nn.Linear(1, 1)) == []
