"""The shared base of what learns from preferences: two completions of a prompt in each group.

A row of a queue has no column for a preference, so it lies in the columns that are there:

    sample   logp                        reward
    0        the reference's, of tokens  the probability that it is the better one; KTO: 1 if it is wanted, else 0
    1        the reference's, of tokens  the margin; KTO: 0

Sample 0 is the chosen one. In KTO sample 1 is a completion of another prompt, from which the
divergence is estimated.
"""  # noqa: E501

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.algorithms._text import Sums, TextLearns, per_sample
from equipoise.facts import Help, Range
from equipoise.types import PACKED_SAMPLES, PACKED_TOKENS, Packed, by_field

PAIR = 2


@dataclass(frozen=True, kw_only=True)
class PairLearns(TextLearns):
    """The base of algorithms that learn from preferences in a file."""

    reads_rewards: ClassVar[bool] = False
    needs_pairs: ClassVar[bool] = True
    # does it compare with the model that the run begins with
    reads_reference: ClassVar[bool] = False
    defaults: ClassVar[Mapping[str, object]] = {
        "placement.envs_per_actor": PAIR,
        "policy.batch": 64,
    }

    label_smoothing: Annotated[
        float,
        Range(0, 0.5),
        Help(
            "Probability that a label is wrong",
            "A label of p then counts as (1 - e) p + e (1 - p).",
        ),
    ] = 0.0

    @property
    def group_size(self) -> int:
        return PAIR

    @property
    def unpaired(self) -> bool:
        """Does it learn from completions with labels, rather than from pairs?"""
        return False

    @abstractmethod
    def score(self, net: Any, data: Packed) -> Tensor:
        """The score [M] of each sample, by which the chosen one should be the better."""

    def smoothed(self, label: Tensor) -> Tensor:
        return label + self.label_smoothing * (1.0 - 2.0 * label)


def columns(x: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the second sample of each group: [M] -> [P] and [P]."""
    both = x[: len(x) // PAIR * PAIR].view(-1, PAIR)
    return both[:, 0], both[:, 1]


def side(data: Packed, index: int) -> Packed:
    """The prompts with the first sample (0) of each group alone, or with the second one (1)."""
    given, token = by_field(data), (data.sample < 0) | (data.sample % PAIR == index)
    tokens = {name: given[name][token] for name in PACKED_TOKENS}
    samples = {name: given[name][index::PAIR] for name in PACKED_SAMPLES}
    number = tokens["sample"]
    tokens["sample"] = torch.where(number < 0, number, number // PAIR)
    return Packed(**tokens, **samples, longest=data.longest)


def labels(data: Packed) -> tuple[Tensor, Tensor, Tensor]:
    """[P] each: the first sample's label, the second's margin, and is the pair there?"""
    label, margin = columns(per_sample(data.reward, data))
    there, _ = columns(per_sample(data.chosen.to(data.logp.dtype), data))
    return label, margin, there > 0


def preferred(gap: Tensor, label: Tensor) -> Tensor:
    """The cross-entropy [P] of the label under sigmoid(gap), arXiv:2305.18290, Eq. 7."""
    return -(label * F.logsigmoid(gap) + (1.0 - label) * F.logsigmoid(-gap))


@torch.no_grad()
def right(gap: Tensor, label: Tensor) -> Tensor:
    """[P] 1 if the sign of the gap agrees with the label, 0 if not, and 1/2 if either is even."""
    return 0.5 + 0.5 * gap.sign() * (label - 0.5).sign()


@torch.no_grad()
def over_pairs(there: Tensor, shown: Mapping[str, Tensor]) -> Sums:
    """Metrics that are means over pairs."""
    count = there.sum()
    return {name: (torch.where(there, x.detach(), 0.0).sum(), count) for name, x in shown.items()}
