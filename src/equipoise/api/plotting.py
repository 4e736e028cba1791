"""Learning curves of runs, as a figure: ``plot``."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.api.results import Result
from equipoise.console.curves import curves, drawn, save
from equipoise.run.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot"]


def plot(
    *runs: str | os.PathLike[str] | Run | Result,
    x: str = "steps",
    y: str = "return",
    out: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw the learning curves of runs; needs the extra "plot".

    Runs of one name, or that differ in nothing but the seed, are one curve: their mean, with the
    95 % interval over the runs. A run of a folder that cannot be read, or has no such number, is
    left out with a warning.

    Args:
        runs: Results, runs, their directories, folders with runs, or "NAME=DIRECTORY".
        x: "steps", "wall" (seconds) or "updates".
        y: "return", "evaluation", "length", "lag", "steps_per_s", "updates_per_s",
            "learner/METRIC" or "info/NAME".
        out: A file (.svg, .png, .pdf) into which the figure is also written.

    Returns:
        A matplotlib ``Figure``, which a notebook shows.

    Raises:
        ValueError: There is no run, or a run has no such number.

    Example:
        >>> figure = eq.plot(run, out="curve.svg")
    """
    if not runs:
        raise ValueError("plot: expected at least one run, got none")
    words = [
        str(run.directory) if isinstance(run, Run | Result) else os.fspath(run) for run in runs
    ]
    warned: list[str] = []
    figure = drawn(curves(words, x=x, y=y, warned=warned), x=x, y=y)
    for sentence in warned:
        warnings.warn(sentence, RuntimeWarning, stacklevel=2)
    if out is not None:
        save(figure, Path(out))
    return figure
