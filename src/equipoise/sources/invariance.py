"""Runs whose generators and learner compute each token by the same sums, and what refuses that."""

from __future__ import annotations

from equipoise.language import architectures
from equipoise.nets.decoder import DecoderConfig
from equipoise.nets.hub_decoder import HubConfig
from equipoise.types import Placement, TaskSource

NAME = "source.batch_invariant"


def problems(source: TaskSource, place: Placement, *, draws: bool) -> list[str]:
    """Return what is wrong with the setting; ``draws``: does the run learn from drawn tokens?"""
    if not source.batch_invariant:
        return []
    needed = [  # setting, value, and why no other will do
        ("source.engine", source.engine, "torch", "other engines add in orders of their own"),
        ("source.lora", source.lora, None, "generators draw with merged adapters"),
        ("source.adapter", source.adapter, "", "generators draw with merged adapters"),
        ("source.weights", source.weights, "fp32", "generators would draw with rounded weights"),
        ("placement.precision", place.precision, "fp32", "its sums are those of fp32"),
        ("placement.device", place.device, "cpu", "its sums are fixed on CPUs alone"),
    ]
    found = [
        f"{name}: must be {wanted or 'left out'} with {NAME}, since {why}, got {got}"
        for name, got, wanted, why in needed
        if got != wanted
    ]
    if not draws:
        found.append(
            f"{NAME}: must be false with an algorithm that draws no tokens; leave it out, or try "
            "--algorithm grpo"
        )
    return found


def check(source: TaskSource, config: DecoderConfig | HubConfig) -> None:
    """ValueError for a model that another library computes."""
    if (
        source.batch_invariant
        and (decoder := architectures.decoder_of(config)) != architectures.OURS
    ):
        raise ValueError(
            f"{NAME}: must be false with --model {source.model}, which {decoder} computes; a "
            "Llama, Mistral, Qwen2 or Qwen3 model has it"
        )
