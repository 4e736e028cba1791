"""Learning curves: numbers of runs over steps or time, their mean and their interval over seeds,
and a figure of them.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from equipoise.hints import hint, install
from equipoise.programs.settings import convert
from equipoise.record.described import (
    algorithm_of,
    checked,
    directories,
    env_of,
    flat,
    labels,
    short_name,
)
from equipoise.record.directory import RunDirectory
from equipoise.record.interval import mean_and_half
from equipoise.record.paths import RUN, near_runs
from equipoise.record.report import LARGEST, METRICS, is_number, read_reports
from equipoise.record.series import AXES, CURVES, ROOMS
from equipoise.schema import described

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Axis = Literal["steps", "wall", "updates"]
GRID = 200  # points of a mean
FEW = 20  # points of a curve that are marked, each
SUFFIXES = (".svg", ".png", ".pdf")


@dataclass(frozen=True, slots=True)
class Curve:
    """The runs that a line stands for: on ``x`` [N] their ``mean`` and the ends of its 95 %
    interval, both [N].
    """

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
        return (
            f"{self.mean[-1]:,.4g} at the end (95 % interval {self.low[-1]:,.4g} to "
            f"{self.high[-1]:,.4g})"
        )


def curves(
    runs: Sequence[str], *, x: str = "steps", y: str = "return", warned: list[str] | None = None
) -> list[Curve]:
    """Return a curve for each name, and for runs without a name a curve of the runs that differ in
    the seed alone.

    A run of a folder is left out if it cannot be read, or shares no place of ``x`` with the runs
    that it is averaged with. ValueError if there is nothing to draw, or if a run that was named
    itself cannot be drawn. ``warned``: takes a sentence for each run that is left out, and for
    damaged lines.
    """
    axis: Axis = convert(x, Axis, "x")
    told: list[str] = [] if warned is None else warned
    asked: set[Path] = set()  # files that were named themselves
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[Path, Any, Any]]] = {}
    for word in runs:
        name, place = _place(word)
        for file in _files(place, told):
            damaged: list[str] = []
            if alone := place in (file, file.parent):
                asked.add(file)
            try:
                named, settings = (name, dict[str, str]()) if name else _described(file)
                at, values = points(read_reports(file, damaged=damaged), axis, y, file)
            except (OSError, ValueError) as error:
                said = damaged[0] if damaged else str(error)
                if alone:
                    raise ValueError(said) from None
                told.append(f"{said}; the run is left out")
                continue
            if damaged:
                told.append(f"{damaged[0]}; {len(damaged)} damaged lines are left out")
            same = groups.setdefault((named, tuple(sorted(settings.items()))), [])
            if any(file.resolve() == other.resolve() for other, *_ in same):
                raise ValueError(f"{file.parent}: expected each run once in a curve, got it twice")
            same.append((file, at, values))
    if not groups:
        raise ValueError(told[0])
    names = labels([(name, dict(settings)) for name, settings in groups])
    made = zip(names, groups.values(), strict=True)
    return [averaged(name, _together(found, asked, told)) for name, found in made]


def _place(word: str) -> tuple[str, Path]:
    """A name, if there is one, and a path."""
    name, separator, rest = word.partition("=")
    if not separator or Path(word).exists():
        return "", Path(word)
    return name, Path(rest)


def _files(place: Path, told: list[str]) -> list[Path]:
    """The metrics.jsonl of a run, of all runs of a folder, or a file itself. ``told``: takes
    folders that cannot be read.
    """
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise FileNotFoundError(
            f"{place}: expected a run, a folder with runs or a metrics.jsonl, got "
            f"none{near_runs(place)}"
        )
    if not (found := [directory / METRICS for directory in directories(place, told)]):
        raise FileNotFoundError(
            f"{place}: expected a run or a folder with runs, got a folder without{near_runs(place)}"
        )
    return found


def _described(file: Path) -> tuple[str, dict[str, str]]:
    """The name of a file's run, and its settings but for the seed; of a file alone its own name."""
    if not (file.parent / RUN).is_file():
        return file.stem, {}
    run = RunDirectory.found(file.parent).run
    program = checked(run["program"], file.parent / RUN)
    found = {"on": str(run.get("on")), **flat(program)}
    found.pop("schedule.seed", None)
    return short_name(env_of(program), algorithm_of(program)), found


def _together(
    found: list[tuple[Path, Any, Any]], asked: set[Path], told: list[str]
) -> list[tuple[Path, Any, Any]]:
    """The runs that have numbers at the place where most have; all of them if one of the others was
    named itself.
    """
    at = max(
        (x[0] for _, x, _ in found),
        key=lambda place: sum(x[0] <= place <= x[-1] for _, x, _ in found),
    )
    others = [(file, x) for file, x, _ in found if not x[0] <= at <= x[-1]]
    if any(file in asked for file, _ in others):
        return found
    told += [
        f"{file}: expected a run with numbers at {at:g}, as the others of its kind, got one from "
        f"{x[0]:g} to {x[-1]:g}; "
        "the run is left out"
        for file, x in others
    ]
    return [one for one in found if one[1][0] <= at <= one[1][-1]]


def points(lines: Sequence[Mapping[str, Any]], axis: Axis, y: str, file: Path) -> tuple[Any, Any]:
    """(x, y) of the reports that have the number, both float64 [N] and ``x`` rising; ValueError if
    no report has it.
    """
    at, values = [], []
    for line in lines:
        try:
            if (value := _value(line, y)) is not None:
                place = (
                    line[AXES[axis].name]
                    if axis == "wall" or y != "evaluation"
                    else _of_evaluation(line, axis)
                )
                at.append(_number(place, axis))
                values.append(value)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{file}: expected reports with the number {y!r}, got one without: {error}"
            ) from None
    if not at:
        known = sorted({*CURVES, "evaluation"})
        rooms = [(room, line.get(key)) for room, key in ROOMS.items() for line in lines]
        known += sorted(
            {
                f"{room}/{name}"
                for room, names in rooms
                if isinstance(names, Mapping)
                for name in names
            }
        )
        why = "none has come yet" if y in known else f"unknown name{hint(y, known)}"
        raise ValueError(f"{file}: expected reports with the number {y!r}; {why}")
    order = np.argsort(np.asarray(at, np.float64), kind="stable")
    return np.asarray(at, np.float64)[order], np.asarray(values, np.float64)[order]


def _value(line: Mapping[str, Any], y: str) -> float | None:
    if y == "evaluation":
        mean = (line.get("evaluation") or {}).get("mean")
        return None if mean is None else _number(mean, y)
    room, _, name = y.partition("/")
    if room in ROOMS and name:
        found = (line.get(ROOMS[room]) or {}).get(name)
    else:
        found = line.get(CURVES[y].name) if y in CURVES else None
    return None if found is None else _number(found, y)


def _number(value: Any, name: str) -> float:
    if is_number(value):
        return float(value)
    raise ValueError(f"{name}: expected a number of at most {LARGEST:g}, got {described(value)}")


def _of_evaluation(line: Mapping[str, Any], axis: Axis) -> float:
    """The step at which the evaluated weights were made, which is before the report."""
    evaluation = line["evaluation"]
    return _number(evaluation["env_steps" if axis == "steps" else "version"], axis)


def averaged(name: str, found: Sequence[tuple[Path, Any, Any]]) -> Curve:
    """One run as it is; of several the mean and its interval while all of them have begun and no
    run has ended.

    ``found``: (file, x [N], y [N]) of each run. ValueError if they have no place in common.
    """
    files = tuple(file for file, _, _ in found)
    if len(found) == 1:
        (_, x, y), *_ = found
        return Curve(name, files, x, y, y, y)
    begin, end = max(x[0] for _, x, _ in found), min(x[-1] for _, x, _ in found)
    if begin > end:
        raise ValueError(
            f"{name}: expected runs that overlap, got one that begins at {begin:g} and one that "
            f"ends at {end:g}"
        )
    grid = np.linspace(begin, end, GRID if end > begin else 1)
    rows = np.stack([np.interp(grid, x, y) for _, x, y in found])
    each = [mean_and_half(column.tolist()) for column in rows.T]
    mean, half = np.array([m for m, _ in each]), np.array([h or 0.0 for _, h in each])
    return Curve(name, files, grid, mean, mean - half, mean + half)


def drawn(found: Sequence[Curve], *, x: str = "steps", y: str = "return") -> Figure:
    """A figure of curves; ImportError without matplotlib."""
    figure = _figure()
    axes = figure.subplots()
    for curve in found:
        if len(set(curve.x)) == 1:  # a line of one point has no length
            half = curve.high - curve.mean if len(curve.runs) > 1 else None
            axes.errorbar(
                curve.x, curve.mean, half, label=curve.name, marker="o", linestyle="none", capsize=3
            )
            continue
        (line,) = axes.plot(
            curve.x, curve.mean, label=curve.name, marker="." if len(curve.x) <= FEW else None
        )
        if len(curve.runs) > 1:
            axes.fill_between(
                curve.x, curve.low, curve.high, alpha=0.2, color=line.get_color(), linewidth=0
            )
    axes.set(xlabel=AXES[x].label, ylabel=CURVES[y].label if y in CURVES else y)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def figure_of(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    x: str,
    y: str,
    *,
    logarithmic: bool,
) -> Figure:
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
        """Shown by a notebook even if no backend of matplotlib's is on."""

        def _repr_svg_(self) -> str:
            with io.StringIO() as text:
                self.savefig(text, format="svg", bbox_inches="tight")
                return text.getvalue()

    return Curves(figsize=(7, 3.5))


def save(figure: Figure, out: Path) -> None:
    """Write a figure; the same figures give the same file. ValueError for a suffix that is no
    picture's.
    """
    if out.suffix not in SUFFIXES:
        raise ValueError(
            f"--out {out}: expected a file that ends in {', '.join(SUFFIXES)}, got "
            f"{out.suffix or 'no suffix'!r}"
        )
    import matplotlib

    out.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "equipoise"}):
        figure.savefig(
            out, bbox_inches="tight", metadata={"Date": None} if out.suffix == ".svg" else None
        )
