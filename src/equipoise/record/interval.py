"""The mean of a few numbers and how far it may be off."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

# Student's t for a two-sided interval of 95 %, by degrees of freedom from 1 on
# (scipy.stats.t.ppf(0.975, n)).
T_95 = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
    2.110,
    2.101,
    2.093,
    2.086,
    2.080,
    2.074,
    2.069,
    2.064,
    2.060,
    2.056,
    2.052,
    2.048,
    2.045,
    2.042,
)
T_OF_MANY = 1.96


def mean_and_half(values: Sequence[float]) -> tuple[float, float | None]:
    """(mean, half of its 95 % interval, Student's) of independent numbers.

    None for the half of a single number; ValueError for no number.
    """
    if not values:
        raise ValueError("expected at least one number, got none")
    mean, n = statistics.fmean(values), len(values)
    if n < 2:
        return mean, None
    t = T_95[n - 2] if n - 2 < len(T_95) else T_OF_MANY
    return mean, t * statistics.stdev(values) / math.sqrt(n)
