"""``sort`` trained to its end by an engine in this process, and by one behind HTTP, in lockstep.

    PYTHONPATH=. .venv/bin/python benchmarks/sort_over_server.py DIR [--steps 200000] [--seed 0]

Both run at ``max_lag`` 0 with the settings of the recipe. The server is the tests'
(``tests/actors/vllm_server.py``): it speaks vLLM's interface over our own engine. The command fails
unless the parameters are equal to the bit, and prints each run's seconds, score on held-out prompts
and hash.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import equipoise as eq
from equipoise.language.architectures import config_of
from equipoise.language.models import find
from equipoise.language.tasks import make
from equipoise.nets.decoder import DecoderConfig
from tests.actors.vllm_process import served


def trained(out: Path, steps: int, seed: int, settings: Sequence[str]) -> str:
    """Train a run to its end, print what came out, and return the hash of its parameters."""
    begin = time.perf_counter()
    run = eq.train(
        "sort",
        "grpo",
        steps=steps,
        seed=seed,
        max_lag=0,
        out=out,
        settings=settings,
    )
    summary = run.summary
    score = summary["evaluation"]["mean"]
    digest = str(summary["params_sha256"])
    print(
        f"{out.name}: {summary['updates']:,} updates in {time.perf_counter() - begin:,.0f} s, "
        f"score {score:.3f}, parameters {digest[:16]}",
        flush=True,
    )
    return digest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.directory.mkdir(parents=True)
    tokenizer = make("sort", seed=given.seed, arguments={}).tokenizer
    assert tokenizer is not None
    config = config_of(asdict(find("tiny", tokenizer.size).config))
    assert isinstance(config, DecoderConfig)
    here = trained(given.directory / "here", given.steps, given.seed, ())
    with served(given.directory, config, tuple(tokenizer.eos)) as (process,):
        settings = [f"source.engine=vllm:{process.url}", "source.engine_versions=0.33"]
        there = trained(given.directory / "there", given.steps, given.seed, settings)
    if here != there:
        raise SystemExit(f"parameters: must be equal to the bit, got {here} and {there}")


if __name__ == "__main__":
    main()
