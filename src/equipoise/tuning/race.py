"""A race: candidates are measured in turns, A B A B, so that changing load falls on each of them.

| rule | what ends a candidate's turns |
|---|---|
| turns | each candidate has at most ``turns`` |
| time | no turn begins after ``until``, nor one that would not fit before it |
| clear | a candidate that the best one beats by ``far``; all of them, if one is left |
| failed | a candidate whose worker failed |
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from equipoise.errors import WorkerFailed

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Race:
    """Rates of candidates, by their labels: pieces of work a second, more is better."""

    # the rate of each turn; 0 if the turn came to nothing
    rates: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, WorkerFailed] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)  # candidates without time for a first turn

    @property
    def best(self) -> dict[str, float]:
        """The best turn of each candidate: other load can only slow a turn down."""
        return self._by(max)

    @property
    def median(self) -> dict[str, float]:
        """The median turn of each candidate: for many short turns, of which some may be
        outliers.
        """
        return self._by(statistics.median)

    def _by(self, of: Callable[[list[float]], float]) -> dict[str, float]:
        alive = {label: rates for label, rates in self.rates.items() if label not in self.failed}
        return {label: rate for label, rates in alive.items() if rates and (rate := of(rates))}

    def contenders(self, far: float) -> list[str]:
        """The candidates that may still be the fastest; none if the fastest is clear."""
        best = self.best
        found = [label for label, rate in best.items() if rate * far >= max(best.values())]
        return found if len(found) > 1 else []


def race(
    candidates: Mapping[str, Callable[[], float]],
    *,
    turns: int,
    until: float = math.inf,
    far: float = math.inf,
    least: int = 0,
    first_s: float = 0.0,
) -> Race:
    """Measure candidates in turns, the first one first; each call is one turn and returns its rate.

    Ends at ``until`` (``time.monotonic``), after ``least`` turns of each. ``first_s``: the assumed
    first turn (0: none); a later turn is assumed to last as long as the longest so far.
    """
    found, longest_s = Race(rates={label: [] for label in candidates}), 0.0
    for turn in range(turns):
        for label in found.contenders(far) if turn else candidates:
            began = time.monotonic()
            if turn >= least and began + ((longest_s or first_s) if first_s else 0.0) > until:
                found.left_out += [] if turn else [label]
                continue
            try:
                found.rates[label].append(candidates[label]())
            except WorkerFailed as error:
                found.failed[label] = error
            longest_s = max(longest_s, time.monotonic() - began)
    return found


def most_usual(rates: Mapping[T, float], order: Iterable[T], *, tie: float) -> T:
    """The first of ``order`` (the most usual first) whose rate times ``tie`` reaches the best."""
    best = max(rates.values())
    return next(one for one in order if one in rates and rates[one] * tie >= best)
