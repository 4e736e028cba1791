"""Learning: curves of return, evaluation, speed, lag and of the learner's own numbers, with
intervals over seeds
"""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.console.curves import Axis
from equipoise.console.place import number
from equipoise.record.described import clipped
from equipoise.record.series import AXES, CURVES
from equipoise.report.elements import (
    NONE,
    captioned,
    folded_section,
    lags_of,
    mean_text,
    named,
    section,
    table,
)
from equipoise.report.figures import Line, chart, legend, sample
from equipoise.report.markup import Html, tag
from equipoise.report.runs import Group, RunRecord, axis_of

MOST_METRICS = 24  # small charts of the learner's numbers


def curves_section(groups: Sequence[Group]) -> Html:
    """Return and evaluation over steps: a group's mean, its interval, and its runs."""
    marks = legend([(sample(group.style), _at_the_end(group, axis_of(groups))) for group in groups])
    several = any(len(group.runs) > 1 for group in groups)
    note = (
        "Several seeds: the mean in bold with its 95 % interval (Student's), if all of them "
        "have numbers; each seed thin."
        if several
        else None
    )
    charts = [_captioned(groups, y) for y in ("return", "evaluation")]
    charts = [one for one in charts if one is not None] or [
        tag("p", "No episode has ended yet, so there is no return.", class_="note")
    ]
    return section("Learning", marks, *charts, note=note)


def _at_the_end(group: Group, axis: Axis) -> str:
    """The name of a group, and the last point of the mean of its returns."""
    found = group.each("return", axis)
    curve = group.curve(found) if found else None
    return (
        group.name
        + (f", {group.seeds}" if group.seeds else "")
        + (f": {curve.said}" if curve is not None else "")
    )


def _captioned(groups: Sequence[Group], y: str, *, small: bool = False) -> Html | None:
    axis = axis_of(groups)
    lines = [line for group in groups for line in lines_of(group, y, axis, small=small)]
    title = CURVES[y].label if y in CURVES else clipped(y, 60)
    drawn = chart(lines, label=title, x_label=AXES[axis].label)
    return (
        None
        if drawn is None
        else tag("figure", tag("figcaption", title), drawn, class_="small" if small else None)
    )


def lines_of(group: Group, y: str, axis: Axis = "steps", *, small: bool = False) -> list[Line]:
    """The lines of a group: one run, or the mean, its interval and (not if ``small``) each run."""
    found = group.each(y, axis)
    curve = group.curve(found) if len(found) > 1 else None
    faint = [Line(group.style, x, values, faint=curve is not None) for _, x, values in found]
    if curve is None:
        return faint
    mean = (
        Line(group.style, curve.x, curve.mean)
        if small
        else Line(group.style, curve.x, curve.mean, curve.low, curve.high)
    )
    return [mean] if small else [*faint, mean]


def metrics_section(groups: Sequence[Group]) -> Html | None:
    """Small charts of the learner's metrics and of the envs' infos."""
    last = [one.lines[-1] for group in groups for one in group.runs]
    names = dict.fromkeys([f"learner/{name}" for line in last for name in line["metrics"]])
    names |= dict.fromkeys(f"info/{name}" for line in last for name in line["info"])
    charts = [
        one
        for name in list(names)[:MOST_METRICS]
        if (one := _captioned(groups, name, small=True)) is not None
    ]
    title = f"{len(charts)} number{'s' * (len(charts) != 1)} of the learner and the env"
    return folded_section(title, tag("div", *charts, class_="grid")) if charts else None


def speed_section(groups: Sequence[Group]) -> Html | None:
    charts = [
        one
        for y in ("steps_per_s", "updates_per_s")
        if (one := _captioned(groups, y, small=True)) is not None
    ]
    return folded_section("Speed", tag("div", *charts, class_="grid")) if charts else None


def lag_section(groups: Sequence[Group]) -> Html | None:
    """Mean and maximum lag of learned rows over steps, and their age, a different number."""
    kinds = dict.fromkeys(group.first.lag_name for group in groups)
    charts = [
        one
        for kind in kinds
        for one in _lags(kind, [group for group in groups if group.first.lag_name == kind])
    ]
    if not charts:
        return None
    rows = [
        (
            named(group.style, group.name),
            group.first.lag_name,
            "".join(mean_text(lags_of(group), 2)),
            _most(group),
        )
        for group in groups
    ]
    note = (
        "Versions between the weights that acted and the learner; with a replay the age of the "
        "rows that were learned from."
    )
    head = ("settings", "what", "mean", "largest")
    return folded_section(
        "Lag", tag("div", *charts, class_="grid"), table(head, rows, texts=2), note=note
    )


def _lags(kind: str, groups: Sequence[Group]) -> list[Html]:
    """Two charts: the mean, and the largest."""
    axis = axis_of(groups)
    means = [line for group in groups for line in lines_of(group, "lag", axis, small=True)]
    most = [Line(group.style, *_largest(one, axis)) for group in groups for one in group.runs]
    drawn = {f"{kind}, mean": means, f"{kind}, largest": most}
    return captioned(
        {name: chart(lines, label=name, x_label=AXES[axis].label) for name, lines in drawn.items()}
    )


def _largest(one: RunRecord, axis: Axis) -> tuple[list[float], list[float]]:
    lines = [line for line in one.lines if line["lag_max"] is not None]
    return [float(line[AXES[axis].name]) for line in lines], [
        float(line["lag_max"]) for line in lines
    ]


def _most(group: Group) -> str:
    found = [
        line["lag_max"] for one in group.runs for line in one.lines if line["lag_max"] is not None
    ]
    return number(max(found), 0) if found else NONE
