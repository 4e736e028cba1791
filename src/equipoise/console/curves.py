"""Learning curves: numbers of runs over steps or time, their mean and their interval over seeds, and a figure of them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from equipoise.hints import hint, install
from equipoise.programs.settings import convert
from equipoise.record.described import directories
from equipoise.record.directory import RunDirectory
from equipoise.record.interval import mean_and_half
from equipoise.record.listing import row
from equipoise.record.paths import near_runs
from equipoise.record.report import METRICS, read_reports

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Axis = Literal["steps", "wall", "updates"]
KEYS: Mapping[str, tuple[str, str]] = {  # of a report, and the label
    "steps": ("env_steps", "env steps"), "wall": ("wall_s", "seconds"), "updates": ("updates", "updates"),
}  # fmt: skip
NAMED: Mapping[str, tuple[str, str]] = {
    "return": ("return_mean", "return, last 100 episodes"), "length": ("length_mean", "steps of an episode"),
    "steps_per_s": ("steps_per_s", "steps/s"), "updates_per_s": ("updates_per_s", "updates/s"), "lag": ("lag_mean", "lag"),
}  # fmt: skip
ROOMS = {"learner": "metrics", "info": "info"}  # what a name begins with, as in TensorBoard, and a report's field
GRID = 200  # points of a mean
SUFFIXES = (".svg", ".png", ".pdf")


@dataclass(frozen=True, slots=True)
class Curve:
    """The runs that a line stands for: on ``x`` [N] their ``mean`` and the ends of its 95 % interval, both [N]."""

    name: str
    runs: tuple[Path, ...]
    x: Any
    mean: Any
    low: Any
    high: Any

    @property
    def said(self) -> str:
        """The last point in words."""
        if len(self.runs) == 1:
            return f"{self.mean[-1]:,.4g} at the end"
        return f"{self.mean[-1]:,.4g} at the end (95 % interval {self.low[-1]:,.4g} to {self.high[-1]:,.4g})"


def curves(runs: Sequence[str], *, x: str = "steps", y: str = "return") -> list[Curve]:
    """A curve for each name, or each env and algorithm where none is given; ValueError where there is nothing to draw."""
    axis: Axis = convert(x, Axis, "x")
    groups: dict[str, list[tuple[Path, Any, Any]]] = {}
    for word in runs:
        name, place = _place(word)
        for file in _files(place):
            at, values = points(read_reports(file), axis, y, file)
            groups.setdefault(name or _named(file), []).append((file, at, values))
    return [averaged(name, found) for name, found in groups.items()]


def _place(word: str) -> tuple[str, Path]:
    """A name, if there is one, and a path."""
    name, separator, rest = word.partition("=")
    if not separator or Path(word).exists():
        return "", Path(word)
    return name, Path(rest)


def _files(place: Path) -> list[Path]:
    """The metrics.jsonl of a run, of all runs of a folder, or a file itself."""
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise FileNotFoundError(f"{place}: expected a run, a folder with runs or a metrics.jsonl, got none{near_runs(place)}")
    if not (found := [directory / METRICS for directory in directories(place)]):
        raise FileNotFoundError(f"{place}: expected a run or a folder with runs, got a folder without{near_runs(place)}")
    return found


def _named(file: Path) -> str:
    if not (file.parent / "run.json").is_file():
        return file.stem
    of = row(RunDirectory.found(file.parent).path)
    return f"{of.env.rpartition(':')[2]} {of.algorithm.rpartition(':')[2]}"


def points(lines: Sequence[Mapping[str, Any]], axis: Axis, y: str, file: Path) -> tuple[Any, Any]:
    """(x, y) of the reports that have the number, both float64 [N] and ``x`` rising; ValueError where none has."""
    at, values = [], []
    for line in lines:
        value = _value(line, y)
        if value is not None:
            at.append(line[KEYS[axis][0]] if axis == "wall" or y != "evaluation" else _of_evaluation(line, axis))
            values.append(value)
    if not at:
        known = sorted({*NAMED, "evaluation", *(f"learner/{name}" for line in lines for name in line.get("metrics", ()))})
        known += sorted({f"info/{name}" for line in lines for name in line.get("info", ())})
        why = "none has come yet" if y in known else f"unknown name{hint(y, known)}"
        raise ValueError(f"{file}: expected reports with the number {y!r}; {why}")
    order = np.argsort(np.asarray(at, np.float64), kind="stable")
    return np.asarray(at, np.float64)[order], np.asarray(values, np.float64)[order]


def _value(line: Mapping[str, Any], y: str) -> float | None:
    if y == "evaluation":
        return None if line.get("evaluation") is None else float(line["evaluation"]["mean"])
    room, _, name = y.partition("/")
    if room in ROOMS and name:
        found = line.get(ROOMS[room], {}).get(name)
    else:
        found = line.get(NAMED[y][0]) if y in NAMED else None
    return None if found is None else float(found)


def _of_evaluation(line: Mapping[str, Any], axis: Axis) -> float:
    """The step at which the evaluated weights were made, which is before the report."""
    evaluation = line["evaluation"]
    return float(evaluation["env_steps"] if axis == "steps" else evaluation["version"])


def averaged(name: str, found: Sequence[tuple[Path, Any, Any]]) -> Curve:
    """One run as it is; of several the mean and its interval where all of them have begun and none has ended.

    ``found``: (file, x [N], y [N]) of each run. ValueError where there is no place that all of them have.
    """
    files = tuple(file for file, _, _ in found)
    if len(found) == 1:
        (_, x, y), *_ = found
        return Curve(name, files, x, y, y, y)
    begin, end = max(x[0] for _, x, _ in found), min(x[-1] for _, x, _ in found)
    if begin > end:
        raise ValueError(f"{name}: expected runs that overlap, got one that begins at {begin:g} and one that ends at {end:g}")
    grid = np.linspace(begin, end, GRID)
    rows = np.stack([np.interp(grid, x, y) for _, x, y in found])
    each = [mean_and_half(column.tolist()) for column in rows.T]
    mean, half = np.array([m for m, _ in each]), np.array([h or 0.0 for _, h in each])
    return Curve(name, files, grid, mean, mean - half, mean + half)


def drawn(found: Sequence[Curve], *, x: str = "steps", y: str = "return") -> Figure:
    """A figure of curves; ImportError without matplotlib."""
    figure = _figure()
    axes = figure.subplots()
    for curve in found:
        (line,) = axes.plot(curve.x, curve.mean, label=curve.name)
        if len(curve.runs) > 1:
            axes.fill_between(curve.x, curve.low, curve.high, alpha=0.2, color=line.get_color(), linewidth=0)
    axes.set(xlabel=KEYS[x][1], ylabel=NAMED[y][1] if y in NAMED else y)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def figure_of(lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], x: str, y: str, *, logarithmic: bool) -> Figure:
    """A figure of lines by name, with the labels of its axes; ImportError without matplotlib."""
    figure = _figure()
    axes = figure.subplots()
    for name, (of_x, of_y) in lines.items():
        axes.plot(of_x, of_y, label=name, marker="o", markersize=3)
    scale = "log" if logarithmic else "linear"
    axes.set(xlabel=x, ylabel=y, xscale=scale, yscale=scale)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _figure() -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"a plot needs matplotlib: {install('plot')}") from error

    class Curves(Figure):
        """Shown by a notebook also where no backend of matplotlib's is on."""

        def _repr_svg_(self) -> str:
            with io.StringIO() as text:
                self.savefig(text, format="svg", bbox_inches="tight")
                return text.getvalue()

    return Curves(figsize=(7, 3.5))


def save(figure: Figure, out: Path) -> None:
    """Write a figure; the same figures give the same file. ValueError for a suffix that is no picture's."""
    if out.suffix not in SUFFIXES:
        raise ValueError(f"--out {out}: expected a file that ends in {', '.join(SUFFIXES)}, got {out.suffix or 'no suffix'!r}")
    import matplotlib

    out.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "equipoise"}):
        figure.savefig(out, bbox_inches="tight", metadata={"Date": None} if out.suffix == ".svg" else None)
