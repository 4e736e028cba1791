"""The choice of what each of several learners keeps of the parameters."""

from __future__ import annotations

from typing import Literal

from equipoise.learners.parameters.flat import Flat
from equipoise.learners.parameters.parameters import Parameters
from equipoise.learners.pool import ALONE, Learners


def parameters_of(shard: Literal["none", "fsdp", "tensor"], pool: Learners = ALONE) -> Parameters:
    """Return what one learner of ``pool`` keeps. A learner alone keeps all of the network.

    torch's DTensor takes a second to load, so it is imported only if it is asked for.
    """
    if pool.size == 1 or shard == "none":
        return Flat(pool)
    if shard == "fsdp":
        from equipoise.learners.parameters.sliced import Sliced

        return Sliced(pool)
    from equipoise.learners.parameters.layers import Layers

    return Layers(pool)
