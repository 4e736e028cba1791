"""Pictures of a study as numbers, for the report and for the live page: curves of its trials,
their settings, their costs, and the lineage of a population.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from equipoise.console.study import score_text
from equipoise.record.described import clipped
from equipoise.record.report import METRICS, is_number, read_reports
from equipoise.report.figures import Line, Named, thinned
from equipoise.studies.history import Trial
from equipoise.studies.recorded import Ancestor, RecordedStudy, env_of_cell, value_text
from equipoise.studies.settings import TRIALS
from equipoise.studies.space import Choice, Parameter, Value

MOST_CURVES = 100  # trials with a curve, the best ones
MOST_ENVS = 30  # of a suite with curves, the first ones
MOST_LINES = 300  # trials across the axes of settings, and in a lineage
MOST_AXES = 8
MOST_DOTS = 1000
MOST_SCHEDULES = 6
MOST_CHOICES = 6  # labels
READ_BYTES = 1 << 20  # of metrics, of all trials together
RETURNS = 60  # points of a curve of returns
BEST, OTHER = 0, 7  # styles of lines
QUINTILES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One picture: lines with the labels of their axes."""

    key: str
    title: str
    lines: Sequence[Line]
    x_label: str
    note: str = ""
    across: Named = ()  # labels in place of numbers
    up: Named = ()


def plots(study: RecordedStudy) -> list[Plot]:
    """Return the pictures of a study that have something to show."""
    if study.settings.suite:
        return list(curves_of_envs(study))
    found = [curves(study), axes(study), costs(study), lineage(study), *schedules(study)]
    return [one for one in found if one is not None and one.lines]


def curves_of_envs(study: RecordedStudy) -> Iterator[Plot]:
    """Draw the scores of a suite's cells over env steps: a picture for each env."""
    envs, left = dict[str, list[Trial]](), READ_BYTES
    for one in study.ranked:
        if one.points:
            envs.setdefault(env_of_cell(one.name), []).append(one)
    for env, trials in itertools.islice(envs.items(), MOST_ENVS):
        lines = list[Line]()
        for one in trials[: MOST_CURVES // min(len(envs), MOST_ENVS) + 1]:
            returns, size = _returns(study, one) if left > 0 else ([], 0)
            left -= size
            x, y = [p.steps for p in one.points], [p.score for p in one.points]
            lines += [*returns, _line(one.name, x, y)]
        yield Plot(
            key=f"curves {env}",
            title=f"Learning in {clipped(env, 60)}",
            lines=lines,
            x_label="env steps",
            note="Points are scores of evaluations, and lines are returns of training.",
        )


def curves(study: RecordedStudy) -> Plot | None:
    """Draw the scores of trials over env steps, the best trial in bold."""
    trials = [one for one in study.ranked if one.points][:MOST_CURVES]
    best, left = study.best, READ_BYTES
    lines = list[Line]()
    for one in trials:
        if left > 0 and len(one.points) < 3:
            returns, size = _returns(study, one)
            left -= size
            lines += returns
        # a clone's line begins at its cut, where its parent's goes on
        shown = [p for p in one.points if one is best or p.steps >= one.parent_steps]
        x, y = [p.steps for p in shown], [p.score for p in shown]
        lines.append(_line(one.name, x, y, is_best=one is best))
    hidden = sum(bool(one.points) for one in study.history) - len(trials)
    note = "Lines and points are scores, and the best trial is in bold. "
    if any(line.kind == "returns" for line in lines):
        note += "The thinnest lines are returns of training. "
    if hidden:
        note += f"The best {len(trials)} trials are drawn, and {hidden:,} are not."
    return Plot(
        key="curves",
        title="Learning",
        lines=_best_last(lines),
        x_label="env steps",
        note=note.strip(),
    )


def axes(study: RecordedStudy) -> Plot | None:
    """Draw each trial as a line across an axis for each setting and one for the score."""
    scored = [one for one in study.scored if one.role == "search"]
    parameters = _parameters(study)
    if len(scored) < 2 or not parameters:
        return None
    order = sorted(scored, key=lambda one: one.score or 0.0)
    quintile = {one.name: QUINTILES * i // len(order) for i, one in enumerate(order)}
    scores = np.array([one.score for one in order])
    # a few very low scores leave room for the others
    low, high = float(np.quantile(scores, 0.05)), float(scores.max())
    lines = []
    for one in sorted(_some(scored, MOST_LINES), key=lambda one: quintile[one.name]):
        at = 0.5 if high <= low else min(max(((one.score or 0.0) - low) / (high - low), 0.0), 1.0)
        y = [*(_share(parameter, one.settings) for parameter in parameters), at]
        kind = "best" if one is study.best else f"q{quintile[one.name]}"
        style = BEST if one is study.best else 1
        lines.append(Line(style, [*range(len(y))], y, kind=kind, name=_name(one)))
    ranges = "; ".join(f"{one.key} {_range(one)}" for one in parameters)
    note = (
        f"From the bottom to the top: {ranges}; score {score_text(low)} to {score_text(high)}. "
        "Better trials have stronger lines, and the best one is in bold."
    )
    names = [(float(i), _last(one.key)) for i, one in enumerate(parameters)]
    return Plot(
        key="axes",
        title="Settings and scores",
        lines=_best_last(lines),
        x_label="",
        note=clipped(note, 1000),
        across=[*names, (float(len(names)), "score")],
        up=[(0.0, "low"), (1.0, "high")],
    )


def costs(study: RecordedStudy) -> Plot | None:
    """Draw scores against core-seconds, with the Pareto front."""
    if not any(study.costs[one.name] for one in study.scored):
        return None

    def line(trials: Sequence[Trial], kind: str, *, dots: bool = False) -> Line:
        x, y = [study.costs[one.name] for one in trials], [one.score for one in trials]
        return Line(BEST if kind else OTHER, x, y, kind=kind, name=kind, dots=dots)

    shown = sorted(_some(study.scored, MOST_DOTS), key=lambda one: study.costs[one.name])
    return Plot(
        key="costs",
        title="Score against cost",
        lines=[
            line(shown, "", dots=True),
            line(study.front, "front"),
            line(study.front, "front", dots=True),
        ],
        x_label="core-seconds",
        note="The line is the Pareto front: no trial has a higher score for less. The cost of a "
        "clone includes its parent's up to the cut.",
    )


def lineage(study: RecordedStudy) -> Plot | None:
    """Draw members of a population over env steps: a row each, and a join for each clone."""
    if not study.members:
        return None
    rows, trials = study.rows(), study.history.trials
    chain = study.ancestors(study.best.name) if study.best else []
    # env steps of each trial of the best one's chain, up to the next cut
    ends = {one.trial: after.steps for one, after in pairwise(chain)}
    names = dict.fromkeys(
        [*list(trials)[-MOST_LINES:], *(one.trial for one in chain[-MOST_LINES:])]
    )
    shown = [trials[name] for name in names]
    lines = list[Line]()
    for one in shown:
        row, x = rows[one.name], [one.parent_steps, max(one.steps, one.parent_steps)]
        lines.append(_line(_name(one), x, [row, row], kind="member"))
        is_best = one is study.best or one.name in ends
        if is_best:
            x = [one.parent_steps, ends.get(one.name, one.steps)]
            lines.append(_line(_name(one), x, [row, row], is_best=True, kind="member"))
        if one.parent is not None:
            x, y = [one.parent_steps] * 2, [rows[one.parent], row]
            lines.append(_line("", x, y, is_best=is_best, kind="join"))
    used = sorted({rows[one.name] for one in shown})
    every = -(-len(used) // 8)
    hidden = len(trials) - len(shown)
    return Plot(
        key="lineage",
        title="Lineage",
        lines=_best_last(lines),
        x_label="env steps",
        note="A row is a place in the population, and an upright line is a clone. The chain of the "
        "best trial is in bold." + f" The last {len(shown)} trials are drawn." * (hidden > 0),
        up=[(float(row), f"{row + 1}") for row in used if row % every == 0],
    )


def schedules(study: RecordedStudy) -> Iterator[Plot]:
    """Draw the value of each setting over env steps, for each living member of a population."""
    chains = [(one, study.ancestors(one.name)) for one in study.members[:20]]
    for parameter in _parameters(study)[:MOST_SCHEDULES] if chains else ():
        lines = []
        for member, chain in reversed(chains):
            x, y = _steps(study, parameter, member, chain)
            lines.append(_line(member.name, x, y, is_best=member is study.best, kind="member"))
        yield Plot(
            key=f"schedule {parameter.key}",
            title=parameter.key,
            lines=lines,
            x_label="env steps",
            up=_labels(parameter),
        )


def _steps(
    study: RecordedStudy, parameter: Parameter, member: Trial, chain: Sequence[Ancestor]
) -> tuple[list[int], list[float]]:
    """The corners of a step line: the value of a setting in each trial of a chain."""
    ends = [*(one.steps for one in chain[1:]), max(member.steps, member.parent_steps)]
    x, y = list[int](), list[float]()
    for one, end in zip(chain, ends):
        x += [one.steps, end]
        y += [_share(parameter, study.history.trials[one.trial].settings)] * 2
    return x, y


def _parameters(study: RecordedStudy) -> list[Parameter]:
    """The settings with an axis, the most important first."""
    order = list(study.importance or ())
    found = sorted(study.space, key=lambda one: order.index(one.key) if order else 0)
    return found[:MOST_AXES]


def _share(parameter: Parameter, settings: Mapping[str, Value]) -> float:
    """The place of a trial on the axis of a setting, 0 to 1; nan if it is not on it."""
    value = settings.get(parameter.key)
    return parameter.share(value) if value is not None and parameter.holds(value) else float("nan")


def _labels(parameter: Parameter) -> Named:
    if isinstance(parameter, Choice):
        every = -(-len(parameter.values) // MOST_CHOICES)
        return [
            (parameter.share(one), clipped(value_text(one), 12))
            for one in parameter.values[::every]
        ]
    return [(share, value_text(parameter.at(share))) for share in (0.0, 1.0)]


def _range(parameter: Parameter) -> str:
    if isinstance(parameter, Choice):
        return clipped(", ".join(map(value_text, parameter.values)), 60)
    scale = " (log)" * (parameter.scale == "log")
    return f"{value_text(parameter.at(0.0))} to {value_text(parameter.at(1.0))}{scale}"


def _returns(study: RecordedStudy, trial: Trial) -> tuple[list[Line], int]:
    """The returns of a trial's training, and the bytes that were read for them."""
    file = study.folder / TRIALS / trial.name / METRICS
    try:
        if (size := file.stat().st_size) > READ_BYTES:
            return [], 0
        lines = read_reports(file, damaged=[])
    except (OSError, ValueError):  # no run yet
        return [], 0
    found = [
        (line["env_steps"], line["return_mean"])
        for line in lines
        if is_number(line["env_steps"]) and is_number(line["return_mean"])
    ]
    if not found:
        return [], size
    x, y = np.array(found, np.float64).T
    style = BEST if trial is study.best else OTHER
    return [Line(style, *thinned(x, y, RETURNS), faint=True, kind="returns")], size


def _line(
    name: str, x: Sequence[float], y: Sequence[float], *, is_best: bool = False, kind: str = ""
) -> Line:
    kinds = f"{kind} best" if is_best else kind
    style = BEST if is_best else OTHER
    faint, dots = not is_best and not kind, len(x) == 1
    return Line(style, x, y, faint=faint, kind=kinds.strip(), name=name, dots=dots)


def _best_last(lines: Sequence[Line]) -> list[Line]:
    """The lines in the order of drawing, so that the best one is on top."""
    return sorted(lines, key=lambda one: "best" in one.kind)


def _some(trials: Sequence[Trial], most: int) -> list[Trial]:
    """At most ``most`` trials: the first, and others evenly from the rest."""
    every = max(len(trials) / most, 1.0)
    return [trials[int(i * every)] for i in range(min(len(trials), most))]


def _name(trial: Trial) -> str:
    return f"{clipped(trial.name, 60)}: {score_text(trial.score)}"


def _last(key: str) -> str:
    return clipped(key.rpartition(".")[2], 20)
