"""A reward model of text: a number for each completion, learned from pairs (Bradley & Terry 1952;
Ouyang et al. 2022, arXiv:2203.02155, Eq. 1).

    L = -p log sigmoid(d) - (1 - p) log sigmoid(-d) + center (r_chosen + r_rejected)^2,   d = r_chosen - r_rejected - margin

r is read from the hidden state of a completion's last token, which is its end. The label p that the
chosen one is better is 1, or 1/2 for a tie, changed by ``label_smoothing`` e to p + e (1 - 2 p). The
margin is the pair's (Touvron et al. 2023, arXiv:2307.09288, Eq. 2); the penalty is Eisenstein et
al.'s (2023, arXiv:2312.09244).

Deviations: none.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from equipoise.algorithms._pairs import (
    PairLearns,
    columns,
    labels,
    over_pairs,
    preferred,
    right,
)
from equipoise.facts import Help
from equipoise.language import adapters, architectures
from equipoise.nets.scored import Scores
from equipoise.types import Batch, LossOutput, NonNegativeFloat, Packed, TextSpec


@dataclass(frozen=True, kw_only=True)
class RewardModel(PairLearns):
    defaults: ClassVar[Mapping[str, object]] = {
        **PairLearns.defaults,
        "optimizer.learning_rate": 1e-5,
    }

    center: Annotated[
        NonNegativeFloat,
        Help("Coefficient of the penalty that centres the rewards"),
    ] = 0.0

    def network(self, spec: TextSpec) -> Scores:
        """The model with a head of one number, which is new unless the directory has one."""
        net = architectures.build_scored(spec.model, spec.weights, fresh=True)
        return adapters.add_adapters(net, spec, learned=(net.head_name,))

    def score(self, net: Scores, data: Packed) -> Tensor:
        return net.scores(data)

    def loss(
        self,
        net: Scores,
        target_net: object,
        batch: Batch,
        *,
        group: str,
        step: float,
        rng: torch.Generator,
    ) -> LossOutput | None:
        """L above, summed over pairs."""
        chosen, rejected = columns(net.scores(batch.data))
        label, margin, there = labels(batch.data)
        terms = preferred(chosen - rejected - margin, self.smoothed(label))
        if self.center:
            terms = terms + self.center * (chosen + rejected).square()
        shown = {
            "loss": terms,
            "rewards/chosen": chosen,
            "rewards/rejected": rejected,
            "rewards/margins": chosen - rejected,
            "rewards/accuracies": right(chosen - rejected, label),
        }
        return LossOutput(
            loss=torch.where(there, terms, 0.0).sum(),
            count=there.sum(),
            metrics=over_pairs(there, shown),
        )
