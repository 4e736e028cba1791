"""Tokens a second of the engine, beside transformers' ``generate`` and ``generate_batch`` on the
same weights.

    PYTHONPATH=src PYTHON benchmarks/generate.py [--cases tiny,8x64,64x64,ragged,ragged-25m] [--who
    ours,generate,batch]
        [--threads 1] [--dtype float32] [--turns 2]

PYTHON needs transformers for ``generate`` and ``batch``. The sides take turns in one process; a
line has the median of each side's turns and the ratio of ours to the best other. Drawn from softmax
at temperature 1, groups of 8 samples of one prompt of 16 tokens (tiny: 8), whole calls with
prefill; ours gives log-probabilities besides.

    tiny         0.09M parameters, 256 samples of 7 tokens
    8x64 64x64   1M parameters, 8 and 64 samples of 64 tokens
    ragged       1M parameters that nobody trained: each of 32 tokens has a chance of about 1/32, one is EOS; 256 samples, at
                 most 256 tokens each, all in one call
    ragged-25m   the same with 25M
"""  # noqa: E501

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from equipoise.actors.engine.torch_engine import Ends, TorchEngine
from equipoise.nets.decoder import Decoder, DecoderConfig

GROUP = 8
PAGE = 32  # tokens of a page of ``generate_batch``


@dataclass(frozen=True)
class Case:
    net: dict[str, Any]
    samples: int
    limit: int
    prompt: int = 16
    eos: tuple[int, ...] = ()


TINY = dict(
    vocab_size=16,
    hidden_size=48,
    num_hidden_layers=3,
    num_attention_heads=3,
    num_key_value_heads=3,
    head_dim=16,
    intermediate_size=128,
)
SMALL = dict(
    vocab_size=32,
    hidden_size=128,
    num_hidden_layers=5,
    num_attention_heads=4,
    num_key_value_heads=4,
    head_dim=32,
    intermediate_size=344,
)
LARGE = dict(
    vocab_size=32,
    hidden_size=512,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=8,
    head_dim=64,
    intermediate_size=1376,
)
CASES = {
    "tiny": Case(TINY, 256, 7, prompt=8),
    "8x64": Case(SMALL, 8, 64),
    "64x64": Case(SMALL, 64, 64),
    "ragged": Case(SMALL, 256, 256, eos=(0,)),
    "ragged-25m": Case(LARGE, 256, 256, eos=(0,)),
}
Side = Callable[[int], int]  # seed -> tokens drawn


def prompts(case: Case, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return rng.integers(1, case.net["vocab_size"], (case.samples // GROUP, case.prompt)).tolist()  # type: ignore[no-any-return]


def ours(case: Case, net: Decoder) -> Side:
    engine = TorchEngine(
        net, rows=case.samples, length=case.prompt + case.limit, ends=Ends(case.eos), seed=0
    )

    def drawn(seed: int) -> int:
        tokens = 0
        for number, prompt in enumerate(prompts(case, seed)):
            engine.submit(seed * 1000 + number, prompt, GROUP, limit=case.limit)
        while engine.live or engine.waiting:
            tokens += sum(len(one.token) for one in engine.step())
        return tokens

    return drawn


def model(case: Case, net: Decoder, **kwargs: Any) -> Any:
    transformers: Any = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    config = transformers.LlamaConfig(
        **case.net, max_position_embeddings=2048, tie_word_embeddings=True, **kwargs
    )
    config.pad_token_id, config.eos_token_id, config.bos_token_id = None, None, None
    made = transformers.LlamaForCausalLM(config).to(net.head.dtype).eval()
    wrong = made.load_state_dict(net.state_dict(), strict=False)
    assert wrong.missing_keys in ([], ["lm_head.weight"]) and not wrong.unexpected_keys, wrong
    return made


def settings(case: Case) -> Any:
    transformers: Any = importlib.import_module("transformers")
    return transformers.GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=case.limit,
        use_cache=True,
        eos_token_id=case.eos[0] if case.eos else None,
        pad_token_id=case.eos[0] if case.eos else 0,
    )


def generate(case: Case, net: Decoder) -> Side:
    made, config = model(case, net), settings(case)

    def drawn(seed: int) -> int:
        torch.manual_seed(seed)
        text = torch.tensor(prompts(case, seed)).repeat_interleave(GROUP, 0)
        with torch.inference_mode():
            found = made.generate(
                text, attention_mask=torch.ones_like(text), generation_config=config
            )[:, case.prompt :]
        if not case.eos:
            return int(found.numel())
        ends = (found == case.eos[0]).int()
        return int((ends.cumsum(1) - ends == 0).sum())

    return drawn


def batch(case: Case, net: Decoder) -> Side:
    from transformers import ContinuousBatchingConfig

    made, config = model(case, net, attn_implementation="sdpa"), settings(case)
    # room for all samples at once; unsaid it takes most of the memory
    pages = -(-(case.prompt + case.limit) // PAGE)
    room = ContinuousBatchingConfig(
        page_size=PAGE,
        num_blocks=case.samples * pages + 8,
        max_batch_tokens=case.samples * case.prompt,
    )

    def drawn(seed: int) -> int:
        torch.manual_seed(seed)
        text = [prompt for prompt in prompts(case, seed) for _ in range(GROUP)]
        found = made.generate_batch(
            inputs=text, generation_config=config, continuous_batching_config=room, warmup=False
        )
        assert len(found) == case.samples, f"{len(found)} of {case.samples} samples came"
        return sum(len(one.generated_tokens) for one in found.values())

    return drawn


SIDES: dict[str, Callable[[Case, Decoder], Side]] = {
    "ours": ours,
    "generate": generate,
    "batch": batch,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--who", default="ours,generate")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--turns", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    for name in given.cases.split(","):
        case = CASES[name]
        torch.manual_seed(0)
        net = Decoder(DecoderConfig(**case.net)).to(getattr(torch, given.dtype))
        sides = {who: SIDES[who](case, net) for who in reversed(given.who.split(","))}
        rates: dict[str, list[float]] = {who: [] for who in given.who.split(",")}
        for turn in range(given.turns):
            for who, found in rates.items():
                began = time.perf_counter()
                tokens = sides[who](turn + 1)
                found.append(tokens / (time.perf_counter() - began))
                print(
                    f"{name} {who}: {tokens:,} tokens, {found[-1]:,.0f} a second",
                    file=sys.stderr,
                    flush=True,
                )
        # the first turn warms up
        medians = {who: statistics.median(found[1:] or found) for who, found in rates.items()}
        best = max((rate for who, rate in medians.items() if who != "ours"), default=float("nan"))
        shown = "  ".join(f"{who} {rate:,.0f}" for who, rate in medians.items())
        print(
            f"{name:10}  {shown}  ratio {medians.get('ours', float('nan')) / best:.2f}", flush=True
        )


if __name__ == "__main__":
    main()
