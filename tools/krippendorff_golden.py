"""Write tests/feedback/krippendorff.json, the alphas of the package krippendorff that ours must
equal.

krippendorff is no dependency of the project; run this in an environment of its own::

    python -m venv .krippendorff
    .krippendorff/bin/pip install krippendorff
    .krippendorff/bin/python tools/krippendorff_golden.py

The file holds ratings [annotators, queries], with null for a missing one, and their alphas.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import krippendorff
import numpy as np
from numpy.typing import NDArray

FILE = Path(__file__).parents[1] / "tests/feedback/krippendorff.json"


def matrices() -> dict[str, NDArray[np.float64]]:
    """Return ratings of several sizes, with missing ones, a spammer, and rare values."""
    draw = np.random.RandomState(3)

    def noisy(annotators: int, queries: int, error: float, missing: float) -> NDArray[np.float64]:
        truth = draw.randint(0, 3, queries)
        wrong = draw.rand(annotators, queries) < error
        found = np.where(wrong, draw.randint(0, 3, (annotators, queries)), truth).astype(float)
        found[draw.rand(annotators, queries) < missing] = np.nan
        return found

    spammed = noisy(4, 40, 0.1, 0.3)
    spammed[3] = draw.randint(0, 3, 40)
    rare = np.zeros((3, 20))
    rare[0, 4], rare[1, 7] = 2.0, 1.0
    return {
        "complete": noisy(3, 12, 0.3, 0.0),
        "missing": noisy(5, 30, 0.2, 0.5),
        "sparse": noisy(10, 60, 0.25, 0.75),
        "random": noisy(6, 50, 1.0, 0.4),
        "spammer": spammed,
        "rare": rare,
        "opposite": np.array([[0.0, 2.0, 0.0, 2.0, 1.0], [2.0, 0.0, 2.0, 0.0, np.nan]]),
        "agreed": np.array([[0.0, 2.0, 1.0, np.nan], [0.0, 2.0, np.nan, 1.0]]),
    }


def main() -> None:
    found = {
        "krippendorff": version("krippendorff"),
        "cases": {
            name: {
                "ratings": [[None if np.isnan(x) else x for x in row] for row in ratings.tolist()],
                "nominal": float(krippendorff.alpha(ratings, level_of_measurement="nominal")),
                "ordinal": float(krippendorff.alpha(ratings, level_of_measurement="ordinal")),
            }
            for name, ratings in matrices().items()
        },
    }
    FILE.write_text(json.dumps(found, separators=(",", ":")) + "\n")
    print(f"{FILE}: {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
