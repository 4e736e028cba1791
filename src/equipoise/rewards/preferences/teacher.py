"""A synthetic teacher, which answers queries by the true rewards, with the faults of people."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np

from equipoise.facts import Help, PositiveFloat, Range, UnitInterval


class Answered(NamedTuple):
    """A teacher's answers to Q queries."""

    share: np.ndarray  # [Q] float32: 1 prefers the left segment, 0 the right one, 0.5 is a tie
    given: np.ndarray  # [Q] bool: False where the teacher skipped the query


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """The teacher of B-Pref (Lee et al. 2021, arXiv:2111.03026, section 3 and algorithm 1).

    A segment's return is its sum of rewards, of which older ones count less, over ``scale``. The
    teacher skips a query or calls it a tie by two thresholds, else it prefers the left segment with
    a chance of ``sigmoid(rationality * (left - right))``, and its preference is turned around with
    a chance of ``error``.
    """

    rationality: Annotated[
        float, Range(0), Help("How surely the better segment is preferred", "inf: always.")
    ] = math.inf
    myopia: Annotated[UnitInterval, Help("Weight of a row over that of the next row")] = 1.0
    error: Annotated[UnitInterval, Help("Share of preferences that are turned around")] = 0.0
    skip: Annotated[float, Help("Return that one segment must have for an answer")] = -math.inf
    equal: Annotated[float, Range(0), Help("Difference of returns below which it is a tie")] = 0.0
    scale: Annotated[PositiveFloat, Help("Reward of one unit of return")] = 1.0

    def returns(self, rewards: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return the teacher's returns [S] of segments with rewards and ``mask`` [S, T]."""
        after = mask[:, ::-1].cumsum(1)[:, ::-1] - mask  # rows of the segment that follow
        return (rewards * mask * self.myopia**after).sum(1) / self.scale  # type: ignore[no-any-return]

    def chance(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return the chance [Q] that the left segment is preferred, by returns [Q]."""
        gap = np.asarray(left, np.float64) - right
        better = (
            np.sign(gap) / 2 + 0.5
            if math.isinf(self.rationality)
            else np.tanh(self.rationality * gap / 2) / 2 + 0.5  # the sigmoid, without overflow
        )
        return better + self.error * (1 - 2 * better)  # type: ignore[no-any-return]

    def answer(self, left: np.ndarray, right: np.ndarray, *, seed: int) -> Answered:
        """Answer queries about segments with the returns ``left`` and ``right``, [Q] each."""
        drawn = np.random.default_rng(seed).random(len(left))
        share = (drawn < self.chance(left, right)).astype(np.float32)
        share[np.abs(left - right) < self.equal] = 0.5
        return Answered(share, np.maximum(left, right) >= self.skip)


def bayes_accuracy(chance: np.ndarray) -> float:
    """Return the Bayes accuracy of queries: the expected accuracy of a model with the teacher's own
    chance [Q] of each.

    The model takes the likelier side, so it is the mean of ``max(chance, 1 - chance)``. The caller
    leaves out ties and skipped queries. No model is more accurate on average.
    """
    return float(np.maximum(chance, 1 - chance).mean())


def expected_accuracy(chance: np.ndarray, predicted: np.ndarray) -> float:
    """Return the accuracy that a model's chances [Q] are expected to have among the preferences of
    a teacher: at most ``bayes_accuracy``, and without the luck of the draw.
    """
    return float(np.where(predicted > 0.5, chance, 1 - chance).mean())
