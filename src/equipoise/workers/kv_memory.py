"""The memory of a generator for keys and values, as tokens of its model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from equipoise.actors.engine.paged_engine import PagedEngine
from equipoise.nets.pages import PAGE, pages_of
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
    source = texts_of(blue.program)
    wanted = source.settings.kv_tokens
    if wanted != "auto":
        return wanted
    spec = blue.spec.env
    length = pages_of(spec.prompt + spec.completion) * PAGE
    config, width = cast("Decoder", net).config, next(net.parameters()).element_size()
    of_one = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * width
    free = torch.cuda.mem_get_info(device)[0] if device != "cpu" else machine().free
    most = source.at_once() * length
    if free is None:
        return most
    return max(min(int(SHARE * free) // blue.program.actors // of_one, most), length)


def note_chosen(blue: Blueprint, engine: object, note: Callable[[str], object]) -> None:
    """Note the memory of an engine, if it was chosen by the machine's."""
    if texts_of(blue.program).settings.kv_tokens == "auto" and isinstance(engine, PagedEngine):
        tokens, nbytes = engine.kv_size
        note(
            f"source.kv_tokens=auto: a generator has {size(nbytes)} for keys and values, which is "
            f"{tokens:,} tokens"
        )
