"""QR-DQN (Dabney et al. 2018, arXiv:1710.10044): DQN that learns quantiles of the return, with the
defaults of sb3-contrib.

The loss is that of ``dqn.py`` with ``distribution="quantile"`` (Eq. 10 there and in the paper). The
target network chooses the action and gives its value, as in the paper's algorithm 1: ``double`` is
off.

Deviations: as in ``dqn.py``; Adam's epsilon is 0.01 / 32 for the batch of 32 that is the default,
whatever the batch is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from equipoise.algorithms.dqn import DQN
from equipoise.facts import KEPT, Help
from equipoise.types import Optimizer, PositiveInt, UnitInterval

BATCH = 32


@dataclass(frozen=True, kw_only=True)
class QRDQN(DQN):
    default_optimizer: ClassVar[Optimizer] = replace(
        DQN.default_optimizer, learning_rate=5e-5, epsilon=0.01 / BATCH, max_grad_norm=0.0
    )
    defaults: ClassVar[Mapping[str, object]] = {**DQN.defaults, "policy.batch": BATCH}

    double: bool = False
    distribution: Annotated[
        Literal["quantile"], Help("Distribution of returns; always quantile here"), KEPT
    ] = "quantile"
    epsilon: UnitInterval = 0.01
    target_every: PositiveInt = 2500
