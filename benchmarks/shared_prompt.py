"""What a prompt that is computed once saves in a loss: groups of samples, beside each sample with a
prompt of its own.

    python benchmarks/shared_prompt.py [--prompt 64] [--completion 32] [--group 8] [--groups 8]

Forward and backward of the log-probabilities and entropies of all sampled tokens, a decoder of 1M
parameters, one thread, the same weights. The two alternate; medians and the median of the ratios
are reported.
"""

import argparse
import json
import statistics
import time

import numpy as np
import torch

from equipoise.nets.decoder import Decoder, DecoderConfig
from equipoise.nets.token_logp import token_logp
from equipoise.types.packed import Packed

CONFIG = DecoderConfig(
    vocab_size=512,
    hidden_size=128,
    num_hidden_layers=5,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    intermediate_size=352,
)
ROUNDS = 9


def packed(groups: int, size: int, prompt: int, completion: int) -> Packed:
    """``groups`` prompts with ``size`` samples each."""
    rng = np.random.default_rng(0)
    tokens = groups * (prompt + size * completion)
    one = [np.full(prompt, -1), *(np.full(completion, n) for n in range(size))]
    place = [np.arange(prompt), *(prompt + np.arange(completion) for _ in range(size))]
    sample = np.concatenate([np.where(x < 0, -1, x + g * size) for g in range(groups) for x in one])
    return Packed(
        token=rng.integers(0, CONFIG.vocab_size, tokens),
        position=np.concatenate(place * groups),
        sample=sample,
        chosen=sample >= 0,
        logp=np.zeros(tokens, np.float32),
        version=np.zeros(tokens, np.int64),
        reward=np.zeros(tokens, np.float32),
        prompt=np.full(groups * size, prompt),
        group=np.repeat(np.arange(groups), size),
        stop=np.ones(groups * size, np.int64),
        task=np.zeros(groups * size, np.int64),
        refills=np.zeros(groups * size, np.int64),
    )


def seconds(net: Decoder, data: Packed) -> float:
    start = time.perf_counter()
    net.zero_grad()
    logp, entropy = token_logp(net, data)
    torch.autograd.backward(logp.sum() + entropy.sum())
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description="The loss with shared and with repeated prompts.")
    for name, default in (("prompt", 64), ("completion", 32), ("group", 8), ("groups", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = Decoder(CONFIG)
    shared = packed(args.groups, args.group, args.prompt, args.completion)
    repeated = packed(args.groups * args.group, 1, args.prompt, args.completion)
    seconds(net, shared), seconds(net, repeated)  # the first ones also allocate
    pairs = [(seconds(net, shared), seconds(net, repeated)) for _ in range(ROUNDS)]
    print(
        json.dumps(
            {
                "shared_s": round(statistics.median(a for a, _ in pairs), 4),
                "repeated_s": round(statistics.median(b for _, b in pairs), 4),
                "ratio": round(statistics.median(b / a for a, b in pairs), 2),
            }
        )
    )


if __name__ == "__main__":
    main()
