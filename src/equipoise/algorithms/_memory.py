"""The settings of a policy's memory, for every algorithm whose network may have a core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from equipoise.facts import KEPT, Help, Read
from equipoise.nets.cores import CoreKind, CoreOptions
from equipoise.types import NonNegativeInt, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Remembers:
    core: Annotated[CoreKind, Help("Memory between the torso and the heads"), KEPT] = "none"
    core_size: Annotated[
        PositiveInt, Help("Size of the memory's state"), Read("core", "none", unless=True), KEPT
    ] = 64
    core_span: Annotated[
        NonNegativeInt,
        Help("Steps that a new memory spans; 0 is about 2 or 3", "Other values are at least 3."),
        Read("core", "lstm", "gru", "mingru"),
    ] = 0
    core_layers: Annotated[
        PositiveInt, Help("Layers of the memory"), Read("core", "mingru", "gtrxl"), KEPT
    ] = 1
    core_heads: Annotated[
        PositiveInt,
        Help("Attention heads per layer; must divide core_size"),
        Read("core", "gtrxl"),
        KEPT,
    ] = 4
    core_window: Annotated[
        PositiveInt,
        Help("Past steps that each layer attends to"),
        Read("core", "gtrxl"),
        KEPT,
    ] = 64

    @property
    def memory(self) -> CoreOptions:
        return CoreOptions(
            kind=self.core,
            size=self.core_size,
            span=self.core_span,
            layers=self.core_layers,
            heads=self.core_heads,
            window=self.core_window,
        )
