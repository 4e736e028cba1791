"""How far Q-values of replayed states are from those that actors had, by what a replayed sequence
begins with.

R2D2 (Kapturowski et al. 2019, section 3, figure 1) on an env whose episodes are to be remembered,
trained with each strategy: sequences begin with zeros or with the stored state, and are learned
from at once or after a burn-in. What is shown is the run's own metric ``discrepancy``, of the first
and the last row that is learned from, over the second half of the run. The same seeds give the same
figures on the same machine: actors and learner take turns (``max_lag`` 0).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from equipoise import api

STRATEGIES: dict[str, dict[str, Any]] = {
    "zero state": {"algorithm.stored_state": False, "algorithm.burn_in": 0},
    "zero state, burn-in": {"algorithm.stored_state": False},
    "stored state": {"algorithm.burn_in": 0},
    "stored state, burn-in": {},
}  # what is not said here is the recipe's
COLOURS = ("#555555", "#e09f3e", "#2a6f97", "#7fb069")
Curve = list[tuple[int, float, float]]  # updates, first, last
Found = dict[str, list[dict[str, Any]]]  # by strategy, one a seed: {"curve", "evaluation"}


def run(strategy: str, seed: int, a: argparse.Namespace) -> dict[str, Any]:
    made = api.program(
        a.env,
        "r2d2",
        seed=seed,
        steps=a.steps,
        max_lag=0,
        evaluate_episodes=100,
        settings={"algorithm.burn_in": a.burn_in, **STRATEGIES[strategy]},
    )
    curve: Curve = []
    with (
        tempfile.TemporaryDirectory() as folder,
        api.start(made, on="serial", out=Path(folder) / "run") as going,
    ):
        for report in going:
            # a slow machine tells the same again
            if report.metrics and (not curve or report.updates > curve[-1][0]):
                first, last = (report.metrics[f"discrepancy/{row}"] for row in ("first", "last"))
                curve.append((report.updates, first, last))
    assert going.summary is not None
    return {"curve": curve, "evaluation": going.summary["evaluation"]}


def later(found: dict[str, Any], row: int) -> float:
    """The mean over the second half."""
    curve = found["curve"]
    return statistics.fmean(point[row] for point in curve[len(curve) // 2 :])


def page(found: Found, a: argparse.Namespace, picture: str | None) -> str:
    out = ["# What a replayed sequence begins with", ""]
    out += [f"    .venv/bin/python benchmarks/discrepancy.py --page {a.page.as_posix()}", ""]
    out += [
        f"R2D2 on `{a.env}`, {a.steps:,} steps, burn-in {a.burn_in} rows. |Q replayed - Q of the "
        "actor| / max |Q| of the",
        "first and the last row that is learned from, mean over the second half of the run; median "
        "of",
        f"{a.seeds} seeds, lowest and highest in brackets. More: `benchmarks/discrepancy.py "
        "--help`.",
        "",
        "| sequences begin with | first row | last row | evaluation |",
        "|---|---|---|---|",
    ]
    for strategy, runs in found.items():
        cells = []
        for row in (1, 2):
            values = [later(one, row) for one in runs]
            cells.append(f"{statistics.median(values):.3f} ({min(values):.3f} - {max(values):.3f})")
        scores = [one["evaluation"]["mean"] for one in runs]
        cells.append(f"{statistics.median(scores):.2f} ({min(scores):.2f} - {max(scores):.2f})")
        out.append(f"| {strategy} | " + " | ".join(cells) + " |")
    out += [
        "",
        "The first row that is learned from is the window's first without a burn-in and its row "
        f"{a.burn_in} with one, so the",
        "column compares like with like only within the two of each kind; the last row is the last "
        "of as many learned rows",
        "in all four. What the weights have changed since the actor used them is in every figure, "
        "so that none comes near 0.",
    ]
    return (
        "\n".join([*out, *(["", f"![Discrepancy over updates]({picture})"] if picture else [])])
        + "\n"
    )


def plot(found: Found, file: Path) -> None:
    """The first seed's curves, one picture for each of the two rows."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "equipoise"  # the same figures give the same file
    from matplotlib import pyplot

    figure, both = pyplot.subplots(1, 2, figsize=(9, 3.5), sharey=True)
    for row, (axes, name) in enumerate(zip(both, ("first", "last"), strict=True), 1):
        for (strategy, runs), colour in zip(found.items(), COLOURS, strict=False):
            curve = runs[0]["curve"]
            axes.plot(
                [point[0] for point in curve],
                [point[row] for point in curve],
                color=colour,
                label=strategy,
            )
        axes.set(xlabel="updates", title=f"{name} row")
        axes.spines[["top", "right"]].set_visible(False)
    both[0].set(ylabel="discrepancy of Q", yscale="log")
    both[1].legend(frameon=False)
    figure.savefig(file, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


def write_page(found: Found, a: argparse.Namespace) -> None:
    a.page.parent.mkdir(parents=True, exist_ok=True)
    picture = f"{a.page.stem}.svg" if importlib.util.find_spec("matplotlib") else None
    if picture:
        plot(found, a.page.with_name(picture))
    else:
        print(
            "note: no picture without matplotlib: .venv/bin/python -m pip install -e '.[plot]'",
            file=sys.stderr,
        )
    a.page.write_text(page(found, a, picture), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--env",
        default="equipoise/TMaze-v0",
        help="one with a recipe for r2d2 (default: %(default)s)",
    )
    parser.add_argument("--steps", type=int, default=150_000)
    parser.add_argument("--burn-in", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="and a picture beside it")
    a = parser.parse_args()
    if a.seeds < 1:
        parser.error(f"expected at least 1 seed, got {a.seeds}")
    start, found = time.perf_counter(), Found((strategy, []) for strategy in STRATEGIES)
    for strategy, runs in found.items():
        for seed in range(a.seeds):
            runs.append(run(strategy, seed, a))
            first, last, score = (
                later(runs[-1], 1),
                later(runs[-1], 2),
                runs[-1]["evaluation"]["mean"],
            )
            said = (
                f"{strategy}, seed {seed}: first {first:.3f}, last {last:.3f}, evaluation "
                f"{score:.2f}"
            )
            print(f"{said} ({time.perf_counter() - start:.0f} s)", file=sys.stderr, flush=True)
    if a.page:
        write_page(found, a)
    print(
        json.dumps(
            {
                "benchmark": "discrepancy",
                "env": a.env,
                "steps": a.steps,
                "burn_in": a.burn_in,
                "found": found,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
