"""The choice of a core: the memory of a policy, between its torso and its heads."""

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
    """Which core a network has, and how large it is."""

    kind: CoreKind = "none"
    size: int = 64
    span: int = 0  # of the recurrent ones: see ``Core``
    layers: int = 1  # of minGRU and GTrXL
    heads: int = 4  # of GTrXL
    window: int = 64  # of GTrXL: rows


NO_CORE = CoreOptions()

CORES: dict[str, Callable[[int, CoreOptions], AnyCore | None]] = {
    "none": lambda size_in, options: None,
    "lstm": lambda size_in, options: Core("lstm", size_in, options.size, span=options.span),
    "gru": lambda size_in, options: Core("gru", size_in, options.size, span=options.span),
    "mingru": lambda size_in, options: MinGRU(
        size_in, options.size, layers=options.layers, span=options.span
    ),
    "gtrxl": lambda size_in, options: GTrXL(
        size_in, options.size, layers=options.layers, heads=options.heads, window=options.window
    ),
}


def make_core(options: CoreOptions, size_in: int) -> AnyCore | None:
    """A core from features [..., size_in] to [..., options.size]; None for ``none``.

    ValueError for a kind that is unknown.
    """
    if (kind := options.kind) not in CORES:
        raise ValueError(
            f"core {kind!r} is unknown; known are {', '.join(CORES)}{hint(kind, CORES)}"
        )
    return CORES[kind](size_in, options)
