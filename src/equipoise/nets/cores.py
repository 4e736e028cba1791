"""The choice of a core: what a policy remembers with, between its torso and its heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from equipoise.hints import hint
from equipoise.nets.core import Core
from equipoise.nets.gtrxl import GTrXL
from equipoise.nets.mingru import MinGRU

CoreKind = Literal["none", "lstm", "gru", "mingru", "gtrxl"]
AnyCore = Core | MinGRU | GTrXL


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreOptions:
    """What some cores take, beside their sizes."""

    span: int = 0  # of the recurrent ones: see ``Core``
    layers: int = 1  # of minGRU and GTrXL
    heads: int = 4  # of GTrXL
    window: int = 64  # of GTrXL: rows


PLAIN = CoreOptions()

CORES: dict[str, Callable[[int, int, CoreOptions], AnyCore | None]] = {
    "none": lambda size_in, size, options: None,
    "lstm": lambda size_in, size, options: Core("lstm", size_in, size, span=options.span),
    "gru": lambda size_in, size, options: Core("gru", size_in, size, span=options.span),
    "mingru": lambda size_in, size, options: MinGRU(
        size_in, size, layers=options.layers, span=options.span
    ),
    "gtrxl": lambda size_in, size, options: GTrXL(
        size_in, size, layers=options.layers, heads=options.heads, window=options.window
    ),
}


def make_core(kind: str, size_in: int, size: int, options: CoreOptions) -> AnyCore | None:
    """A core from features [..., size_in] to [..., size]; None for ``none``, ValueError for a name
    that is unknown.
    """
    if kind not in CORES:
        raise ValueError(
            f"core {kind!r} is unknown; known are {', '.join(CORES)}{hint(kind, CORES)}"
        )
    return CORES[kind](size_in, size, options)
