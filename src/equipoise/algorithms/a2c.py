"""A2C, synchronous advantage actor-critic: A3C's loss (Mnih et al. 2016, arXiv:1602.01783) in
lockstep, on all streams at once.

The actors wait for the learner. So the policy that acted is the policy that learns, and nothing has
to be corrected.

The defaults are the defaults of Stable-Baselines3. There the value loss is the whole square and has
the weight 0.5. Here it is half the square (``a3c.py``), so ``value`` is 1.

Deviation: torch's RMSProp has epsilon outside the root, as in Stable-Baselines3 and not as in the
paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from equipoise.algorithms.a3c import A3C
from equipoise.facts import Help
from equipoise.types import NonNegativeFloat, Optimizer, UnitInterval


@dataclass(frozen=True, kw_only=True)
class A2C(A3C):
    default_optimizer: ClassVar[Optimizer] = replace(A3C.default_optimizer, schedule="constant")
    max_sensible_lag: ClassVar[float | None] = 1.0
    defaults: ClassVar[Mapping[str, object]] = {"policy.unroll": 5, "placement.max_lag": 0}

    lambda_: Annotated[UnitInterval, Help("GAE lambda; 1 gives n-step returns")] = 1.0
    entropy: NonNegativeFloat = 0.0
    value: NonNegativeFloat = 1.0
