"""The forecast against published systems: one row of a paper fits the cost of a step, the others
are predicted.

    .venv/bin/python benchmarks/forecasts.py [--page docs/results/forecasts.md]

The files are those of docs/results/forecasts. A system with one published row is fitted to it, and
nothing of it is predicted.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path
from typing import Any

from harness import markdown

from equipoise.balance.forecast import forecast, read

FILES = Path(__file__).resolve().parents[1] / "docs/results/forecasts"
FRAMES = 4  # of a step
# file: (what it says, CPUs, frames/s, blocks of a batch); the first row is the one that step_us is
# fitted to
ROWS: dict[str, list[tuple[str, int, float, int]]] = {
    "impala": [
        ("150 CPUs, P100", 150, 80_000, 32),
        ("48 CPUs, P100, one machine", 48, 21_000, 32),
        ("375 CPUs, P100", 375, 200_000, 32),
        ("500 CPUs, P100, batch 128", 500, 250_000, 128),
    ],
    "ape-x": [("360 actors", 360, 50_000, 360)],
    "sample-factory": [
        ("36 cores, simulation alone", 1, 181_740, 36),
        ("36 cores, 2080 Ti, training", 1, 135_893, 36),
    ],
    "seed": [("55 CPUs, V100", 55, 67_000, 55)],
}


def frames_per_s(data: dict[str, Any], count: int, blocks: int, step_us: float) -> float:
    node = data["nodes"][0] | {"count": count}
    made = data | {"nodes": [node], "work": data["work"] | {"blocks": blocks, "step_us": step_us}}
    cluster, ring, sizes = read(made, "the file")
    assert ring is not None and sizes is not None
    return FRAMES * forecast(ring, cluster, sizes).steps_per_s


def fitted(data: dict[str, Any], count: int, blocks: int, wanted: float) -> float:
    """The cost of a step with which this row comes out, within half a percent."""
    step_us = float(data["work"]["step_us"])
    for _ in range(6):
        found = frames_per_s(data, count, blocks, step_us)
        if abs(found / wanted - 1) < 0.005:
            break
        step_us *= found / wanted
    return step_us


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", type=Path)
    a = parser.parse_args()
    lines = []
    for name, rows in ROWS.items():
        data = tomllib.loads((FILES / f"{name}.toml").read_text(encoding="utf-8"))
        _, count, wanted, blocks = rows[0]
        step_us = fitted(data, count, blocks, wanted)
        for number, (said, count, published, blocks) in enumerate(rows):
            found = frames_per_s(data, count, blocks, step_us)
            error = "fitted" if not number else f"{found / published - 1:+.0%}"
            lines.append([name, said, f"{published:,.0f}", f"{found:,.0f}", error])
            print(lines[-1], flush=True)
    text = markdown(["system", "row", "published frames/s", "forecast", "error"], lines)
    print(text)
    if a.page:
        head = (
            "# The forecast beside published systems\n\nWritten by `python benchmarks/forecasts.py "
            "--page "
            "docs/results/forecasts.md`. The cost of a step is fitted to the first row of "
            "each\nsystem; what is assumed "
            "besides stands in its file in `docs/results/forecasts/`. These systems ran on other "
            "machines and with other\ncode: the "
            "page says how far a model of *our* ring, with one constant of theirs, is from them. "
            "It says nothing of our own "
            "speed.\n\n"
        )
        a.page.write_text(f"{head}{text}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
