"""Direct preference optimisation: a policy learns from pairs of completions, without a reward model
(Rafailov et al. 2023, arXiv:2305.18290).

With the log-ratio h = log pi(y) / reference(y) of a completion, and the label p that the chosen one
is better (1, or 1/2 for a tie, changed by ``label_smoothing`` e to p + e (1 - 2 p)):

    sigmoid   -p log sigmoid(beta g) - (1 - p) log sigmoid(-beta g),  g = h_chosen - h_rejected
    ipo       (g - (2 p - 1) / (2 beta))^2                            Azar et al. 2023, arXiv:2310.12036, Eq. 17
    kto       w (1 - sigmoid(s beta (h - z)))                         Ethayarajh et al. 2024, arXiv:2402.01306, Eq. 7

Label smoothing is Mitchell's (2023, A note on DPO with noisy preferences). In ``kto`` s is 1 for a
wanted completion and -1 for another, w its weight, and z is the divergence from the reference: the
mean of h over completions of other prompts in the step, at least 0.

The reference is the model that ``source.model`` names. The log-probabilities of the reference are
computed once, before training, and kept next to the file.

Deviations: h is a sum over tokens in all three; TRL's ``ipo`` is ``length_normalize`` with ``ipo``.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from equipoise.algorithms._pairs import (
    PairLearns,
    columns,
    labels,
    over_pairs,
    preferred,
    right,
    side,
)
from equipoise.algorithms._text import Sums, per_sample
from equipoise.facts import Help, Read
from equipoise.nets.decoder import Decoder
from equipoise.nets.token_logp import token_logp
from equipoise.types import (
    Batch,
    LossOutput,
    NonNegativeFloat,
    Packed,
    Pool,
    PositiveFloat,
    Tree,
)


@dataclass(frozen=True, kw_only=True)
class DPO(PairLearns):
    reads_reference: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, object]] = {
        **PairLearns.defaults,
        "optimizer.learning_rate": 1e-6,
    }

    loss_type: Annotated[
        Literal["sigmoid", "ipo", "kto"],
        Help(
            "Loss of a pair; kto learns from labels",
            "sigmoid: DPO. ipo: a square, which does not push pairs apart without end. kto: rows "
            "with a completion and a label; of a pair each completion is a row.",
        ),
    ] = "sigmoid"
    beta: Annotated[
        PositiveFloat,
        Help("Strength of the pull towards the reference"),
    ] = 0.1
    length_normalize: Annotated[
        bool,
        Help(
            "Divide log-ratios by the number of tokens",
            "It applies to sigmoid and ipo. TRL's ipo does it always, its sigmoid_norm also.",
        ),
    ] = False
    desirable_weight: Annotated[
        NonNegativeFloat, Help("Weight of wanted completions"), Read("loss_type", "kto")
    ] = 1.0
    undesirable_weight: Annotated[
        NonNegativeFloat, Help("Weight of unwanted completions"), Read("loss_type", "kto")
    ] = 1.0

    @property
    def unpaired(self) -> bool:
        return self.loss_type == "kto"

    def refused(self, max_lag: int | None) -> str | None:
        if self.unpaired and (self.label_smoothing or self.length_normalize):
            name = "label_smoothing" if self.label_smoothing else "length_normalize"
            return f"algorithm.{name}: must be left out with algorithm.loss_type=kto"
        return None

    def log_ratio(self, net: Decoder, data: Packed) -> tuple[Tensor, Tensor]:
        """[M] each: log pi of a sample, and log pi - log reference."""
        logp, _ = token_logp(net, data, temperature=self.temperature, entropy=False)
        return per_sample(logp, data), per_sample(logp - data.logp, data)

    def score(self, net: Decoder, data: Packed) -> Tensor:
        """The implicit reward beta h [M]."""
        return self.beta * self._normalized(self.log_ratio(net, data)[1], data)

    def _normalized(self, ratio: Tensor, data: Packed) -> Tensor:
        if not self.length_normalize:
            return ratio
        return ratio / per_sample(data.chosen.to(ratio.dtype), data).clamp(min=1.0)

    def targets(
        self, net: Decoder, target_net: object, data: Packed, *, rng: torch.Generator, pool: Pool
    ) -> Tree:
        """[N], the same everywhere: z of KTO, over the samples of all learners."""
        if not self.unpaired:
            return {}
        _, _, there = labels(data)
        other = self.log_ratio(net, side(data, 1))[1][: len(there)]
        total, count = pool.sum(
            torch.stack([torch.where(there, other, 0.0).sum(), there.sum().to(other.dtype)])
        )
        divergence: Tensor = (total / count.clamp(min=1)).clamp(min=0)
        return {"divergence": divergence.expand(len(data.token)).clone()}

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
        """L above, summed over pairs."""
        data = batch.data
        label, _, there = labels(data)
        if self.unpaired:
            first = self.log_ratio(net, side(data, 0))[1][: len(label)]
            terms, metrics = self._kto(first, label, batch.targets["divergence"][:1], there)
        else:
            logp, ratio = self.log_ratio(net, data)
            first, second = columns(self._normalized(ratio, data))
            gap, wanted = first - second, self.smoothed(label)
            if self.loss_type == "ipo":
                terms = (gap - (2.0 * wanted - 1.0) / (2.0 * self.beta)).square()
            else:
                terms = preferred(self.beta * gap, wanted)
            chosen, rejected = columns(logp)
            shown = {
                "loss": terms,
                "rewards/chosen": self.beta * first,
                "rewards/rejected": self.beta * second,
                "rewards/margins": self.beta * gap,
                "rewards/accuracies": right(gap, label),
                "logps/chosen": chosen,
                "logps/rejected": rejected,
            }
            metrics = over_pairs(there, shown)
        return LossOutput(
            loss=torch.where(there, terms, 0.0).sum(), count=there.sum(), metrics=metrics
        )

    def _kto(
        self, ratio: Tensor, label: Tensor, divergence: Tensor, there: Tensor
    ) -> tuple[Tensor, Sums]:
        """[P] the terms of KTO, and metrics over the completions of either label."""
        sign = 2.0 * label - 1.0
        weight = self.undesirable_weight + label * (self.desirable_weight - self.undesirable_weight)
        terms = weight * (1.0 - torch.sigmoid(sign * self.beta * (ratio - divergence)))
        reward = {"rewards": self.beta * ratio.detach()}
        wanted = label > 0.5
        metrics = over_pairs(
            there,
            {
                "loss": terms,
                "rewards/accuracies": right(ratio - divergence, label),
                "kl": divergence.expand(len(ratio)),
            },
        )
        for name, of in (("chosen", wanted), ("rejected", ~wanted)):
            metrics[f"rewards/{name}"] = over_pairs(there & of, reward)["rewards"]
        return terms, metrics
