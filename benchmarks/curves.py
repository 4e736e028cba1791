"""The returns of runs over their steps, as a picture: curves.py OUT.svg NAME=RUN/metrics.jsonl [NAME=...]

The return is the mean of the last 100 training episodes, as each line of metrics.jsonl has it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", nargs="+", help="NAME=FILE")
    a = parser.parse_args()
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "equipoise"  # the same figures give the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.5))
    for run in a.runs:
        name, _, file = run.partition("=")
        if not file:
            parser.error(f"expected NAME=FILE, got {run!r}")
        lines = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]
        shown = [(line["env_steps"] / 1e6, line["return_mean"]) for line in lines if line["return_mean"] is not None]
        axes.plot(*zip(*shown, strict=True), label=name)
    axes.set(xlabel="million steps", ylabel="return, last 100 episodes")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(a.out, bbox_inches="tight", metadata={"Date": None})
    return 0


if __name__ == "__main__":
    sys.exit(main())
