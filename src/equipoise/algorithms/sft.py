"""Supervised fine-tuning: the policy under which the wanted completions are likeliest.

    L = -log pi(token) - entropy H

over the chosen tokens of a step, each with the same weight. Every completion is another's, so
rewards have no effect.

Deviations: none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from equipoise.algorithms._text import TextLearns, over
from equipoise.facts import Help
from equipoise.nets.decoder import Decoder
from equipoise.nets.token_logp import token_logp
from equipoise.types import Batch, LossOutput, NonNegativeFloat


@dataclass(frozen=True, kw_only=True)
class SFT(TextLearns):
    reads_rewards: ClassVar[bool] = False
    defaults: ClassVar[Mapping[str, object]] = {
        "placement.envs_per_actor": 1
    }  # a completion is learned from once, not in a group

    entropy: Annotated[NonNegativeFloat, Help("Entropy coefficient, per token")] = 0.0

    def loss(
        self,
        net: Decoder,
        target_net: object,
        batch: Batch,
        *,
        group: str,
        step: float,
        rng: torch.Generator,
    ) -> LossOutput | None:
        """L above, summed over chosen tokens."""
        chosen = batch.data.chosen
        logp, entropy = token_logp(net, batch.data, temperature=self.temperature)
        terms = torch.where(chosen, -logp - self.entropy * entropy, 0.0)
        return LossOutput(
            loss=terms.sum(),
            count=chosen.sum(),
            metrics=over(chosen, {"loss": -logp, "entropy": entropy}),
        )
