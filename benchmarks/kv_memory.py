"""Samples that the engine draws at once with one memory for keys and values by present lengths,
beside as much memory as rows of the longest length: ``OMP_NUM_THREADS=1 .venv/bin/python
benchmarks/kv_memory.py``.
"""

from __future__ import annotations

import copy
import time

import torch

from equipoise.actors.engine.paged_engine import PagedEngine
from equipoise.actors.engine.torch_engine import Ends, TorchEngine
from equipoise.nets.decoder import Decoder, DecoderConfig

PROMPT, LIMIT, GROUPS, SAMPLES = 32, 256, 64, 8
LENGTH = PROMPT + LIMIT


def decoder() -> Decoder:
    """A model at random, whose samples have 42 tokens in the mean."""
    torch.manual_seed(0)
    return Decoder(
        DecoderConfig(
            family="qwen3",
            vocab_size=48,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            intermediate_size=128,
            max_position_embeddings=512,
        )
    )


def drawn(name: str, engine: TorchEngine) -> None:
    for group in range(GROUPS):
        engine.submit(group, [5] * PROMPT, SAMPLES, limit=LIMIT)
    began, steps, tokens, back = time.process_time(), 0, 0, 0
    while engine.live or engine.waiting:
        ended = engine.step()
        steps += 1
        tokens += sum(len(one.token) for one in ended)
        back += sum(one.given_back for one in ended)
    rate = tokens / (time.process_time() - began)
    print(f"| {name} | {tokens / steps:.1f} | {back} | {rate:,.0f} |")


def main() -> None:
    torch.set_num_threads(1)
    net = decoder()
    print("| memory | samples at once | given back | tokens per CPU second |\n|---|--:|--:|--:|")
    for rows in (16, 64):
        tokens = rows * LENGTH
        fixed = TorchEngine(copy.deepcopy(net), rows=rows, length=LENGTH, ends=Ends((3,)), seed=1)
        drawn(f"{rows} rows of {LENGTH} tokens", fixed)
        for most in (rows, 256):
            paged = PagedEngine(
                copy.deepcopy(net),
                kv_tokens=tokens,
                rows=most,
                length=LENGTH,
                ends=Ends((3,)),
                seed=1,
            )
            drawn(f"{tokens:,} tokens, at most {most} samples", paged)


if __name__ == "__main__":
    main()
