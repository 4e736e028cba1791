"""Write tests/studies/rliable.json, the numbers of the library rliable that ours must equal.

rliable is no dependency of the project; run this in an environment of its own::

    python -m venv .rliable
    .rliable/bin/pip install rliable
    .rliable/bin/python tools/rliable_golden.py

The file holds the scores, the runs that each of rliable's bootstraps drew, and its results.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rliable import library, metrics

warnings.simplefilter("ignore")  # arch's, of intervals without a width
FILE = Path(__file__).parents[1] / "tests/studies/rliable.json"
REPS = 60
AGGREGATES = ("mean", "median", "iqm", "optimality_gap")
THRESHOLDS = [-0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 2.0]
Scores = NDArray[np.float64]
drawn: list[list[object]] = []  # by the bootstrap that is running


class OneBootstrap(library.StratifiedBootstrap):  # type: ignore[misc]  # rliable has no types
    """The bootstrap of one array, which notes the runs that it draws."""

    def update_indices(self) -> tuple[NDArray[np.int64], ...]:
        found: tuple[NDArray[np.int64], ...] = super().update_indices()
        drawn.append([found[0].tolist()])
        return found


class SeveralBootstrap(library.StratifiedIndependentBootstrap):  # type: ignore[misc]
    """The bootstrap of several arrays, which notes the runs that it draws."""

    def update_indices(self) -> tuple[list[tuple[NDArray[np.int64], ...]], object]:
        found: tuple[list[tuple[NDArray[np.int64], ...]], object] = super().update_indices()
        drawn.append([one[0].tolist() for one in found[0]])
        return found


library.StratifiedBootstrap = OneBootstrap
library.StratifiedIndependentBootstrap = SeveralBootstrap


def estimate(
    scores: Scores | Sequence[Scores], measure: Callable[..., Scores]
) -> dict[str, object]:
    """Return rliable's point estimate and interval, with the runs that it drew for each array."""
    drawn.clear()
    points, intervals = library.get_interval_estimates({"x": scores}, measure, reps=REPS)
    indices = [list(one) for one in zip(*drawn, strict=True)]
    assert {len(one) for one in indices} == {REPS}
    return {
        "value": np.asarray(points["x"]).tolist(),
        "interval": np.asarray(intervals["x"]).tolist(),
        "indices": indices,
    }


def matrices() -> dict[str, Scores]:
    """Return scores [runs, tasks] of several sizes, with ties, outliers and scores below 0."""
    draw = np.random.RandomState(7)
    return {
        "5x3": draw.normal(0.6, 0.4, (5, 3)),
        "3x4": draw.gamma(2.0, 0.4, (3, 4)),
        "7x1": draw.uniform(-1.0, 2.0, (7, 1)),
        "2x5": draw.normal(1.0, 3.0, (2, 5)),
        "ties": draw.randint(0, 3, (4, 3)) / 2,
        "alike": np.full((3, 2), 0.5),
        "outlier": np.vstack([draw.uniform(0.0, 1.0, (5, 3)), [[0.2, 900.0, -40.0]]]),
    }


def measured(scores: Scores) -> Scores:
    return np.array([getattr(metrics, f"aggregate_{one}")(scores) for one in AGGREGATES])


def profiled(scores: Scores) -> Scores:
    return np.asarray(library.score_distributions(scores, THRESHOLDS))


def improved(x: Scores, y: Scores) -> Scores:
    return np.array([metrics.probability_of_improvement(x, y)])


def main() -> None:
    np.random.seed(11)
    given = matrices()
    pairs = [("5x3", "ties"), ("ties", "5x3"), ("5x3", "outlier"), ("5x3", "5x3")]
    found = {
        "rliable": version("rliable"),
        "aggregates": AGGREGATES,
        "thresholds": THRESHOLDS,
        "matrices": {
            name: {
                "scores": scores.tolist(),
                "aggregates": estimate(scores, measured),
                "profile": estimate(scores, profiled),
            }
            for name, scores in given.items()
        },
        "improvement": [
            {"x": x, "y": y} | estimate([given[x], given[y]], improved) for x, y in pairs
        ],
    }
    FILE.write_text(json.dumps(found, separators=(",", ":")) + "\n")
    print(f"{FILE}: {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
