"""The memory of a generator for keys and values, as tokens of its model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from equipoise.actors.engine.paged_engine import PagedEngine
from equipoise.nets import lora
from equipoise.nets.pages import PAGE, pages_of
from equipoise.nets.precision import low_dtype
from equipoise.plans.memory_needed import machine, size
from equipoise.sources.text import texts_of

if TYPE_CHECKING:
    from equipoise.nets.decoder import Decoder
    from equipoise.plans.blueprint import Blueprint

SHARE = 0.5  # of the free memory that all generators of a machine take, if it is chosen for them


def kv_tokens(blue: Blueprint, net: nn.Module, device: str) -> int:
    """The tokens that a generator's samples may have at once together; 0: each has room for the
    longest. ``device``: of the engine.
    """
    source, place = texts_of(blue.program), blue.program.placement
    wanted, spec = source.settings.kv_tokens, blue.spec.env
    length = pages_of(spec.prompt + spec.completion) * PAGE
    most = source.at_once() * length  # more can never be in use
    if wanted != "auto":
        return min(wanted, most)
    config = cast("Decoder", net).config
    rounds = device != "cpu" and not lora.layers_of(net)
    dtype = low_dtype(place.precision, device) if rounds else None
    width = (dtype or torch.float32).itemsize
    of_one = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * width
    free = torch.cuda.mem_get_info(device)[0] if device != "cpu" else machine().free
    if free is None:
        return most
    # those in learners have GPUs of their own, but one memory with the others on CPUs
    elastic = place.text == "elastic" and device != "cpu"
    generators = max(place.actors if elastic else blue.program.actors, 1)
    return max(min(int(SHARE * free) // generators // of_one, most), length)


def note_chosen(blue: Blueprint, engine: object, note: Callable[[str], object]) -> None:
    """Note the memory of an engine, if it was chosen by the machine's."""
    if texts_of(blue.program).settings.kv_tokens == "auto" and isinstance(engine, PagedEngine):
        tokens, nbytes = engine.kv_size
        note(
            f"source.kv_tokens=auto: a generator has {size(nbytes)} for keys and values, which is "
            f"{tokens:,} tokens"
        )
