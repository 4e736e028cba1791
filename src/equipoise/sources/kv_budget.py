"""Runs whose generators have one budget of memory for keys and values, and what refuses that."""

from __future__ import annotations

from equipoise.language import architectures
from equipoise.nets.decoder import DecoderConfig
from equipoise.nets.pages import PAGE, pages_of
from equipoise.types import PROXY, Program, TaskSource, TextSpec, learning

NAME = "source.kv_tokens"
FLOAT32 = 4  # bytes of a number on a CPU


def problems(source: TaskSource, *, draws: bool) -> list[str]:
    """Return what is wrong with the setting; ``draws``: does the run learn from drawn tokens?"""
    if source.kv_tokens == 0:
        return []
    got = f"got {source.kv_tokens}"
    if not draws:
        return [f"{NAME}: must be 0 with an algorithm that draws no tokens, {got}; leave it out"]
    if source.task.startswith(PROXY):
        return [f"{NAME}: must be 0 with {source.task}, whose engine has its own memory, {got}"]
    if source.engine != "torch":
        return [
            f"{NAME}: must be 0 with source.engine={source.engine}, which has its own memory, {got}"
        ]
    return []


def check(source: TaskSource, spec: TextSpec) -> None:
    """ValueError for a budget below one sample, or a model that another library computes."""
    if source.kv_tokens == 0:
        return
    decoder = architectures.decoder_of(architectures.config_of(spec.model))
    if decoder != architectures.OURS:
        raise ValueError(
            f"{NAME}: must be 0 with --model {source.model}, which {decoder} computes with room "
            f"for each sample, got {source.kv_tokens}"
        )
    longest = spec.prompt + spec.completion
    least = pages_of(longest) * PAGE
    if source.kv_tokens != "auto" and source.kv_tokens < least:
        raise ValueError(
            f"{NAME}: must be at least {least:,}, the longest prompt with its completion "
            f"({longest:,} tokens) in pages of {PAGE}, got {source.kv_tokens:,}; a shorter "
            "--max-completion-length needs less"
        )


def nbytes(program: Program, source: TaskSource, spec: TextSpec, rows: int) -> int:
    """Bytes of the keys and values of all generators, in the memory of the machine, at least.

    ``rows``: samples that a generator draws at once. 0 with GPUs, an engine of another kind, a
    model that another library computes, and algorithms that draw nothing.
    """
    place, config = program.placement, architectures.config_of(spec.model)
    elsewhere = place.device != "cpu" or source.engine != "torch" or source.task.startswith(PROXY)
    draws = any(policy.algorithm.reads_rewards for policy in learning(program).values())
    if elsewhere or not draws or not isinstance(config, DecoderConfig):
        return 0
    tokens = rows * (spec.prompt + spec.completion)
    if source.kv_tokens:  # chosen by the memory that is free, or no more than all samples need
        tokens = 0 if source.kv_tokens == "auto" else min(source.kv_tokens, tokens)
    of_one = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * FLOAT32
    return program.actors * tokens * of_one
