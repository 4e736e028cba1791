"""The ring as text: a report in, lines of at most 80 columns out. Nothing here knows a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rich.console import Group
from rich.filesize import decimal
from rich.text import Text

from equipoise.balance.alarms import Alarm
from equipoise.balance.remedies import Remedy
from equipoise.balance.shares import STATES, Shares, add
from equipoise.record.report import Evaluating, Evaluation, Report, SiteStats, cause_of
from equipoise.types import Frozen, Program, learning

WIDTH = 78
BAR = 27  # columns of a worker's bar
PROGRESS, SPARKLINE = 20, 24
NAME = 10  # columns of a worker's name
MANY = 100  # versions, of which tenths say nothing
AHEAD = 1.1  # so many times the steps that are learned from
SITES = 4  # that have a line each
MOST_ALARMS = 3  # that have a line each
MOST_INFO = 5  # lines of numbers from the env's info
COLUMNS = (9, 12, 10, 10)  # columns of the shares in numbers
MARKS = {"worked": "█", "preempted": "▒", "starved": "░", "blocked": "·"}  # distinct without colour, too
STYLES = {"worked": "green", "preempted": "red", "starved": "yellow", "blocked": "blue"}
SPARKS = "▁▂▃▄▅▆▇█"
# Replacements for encodings other than UTF-8: one character for one, so that styles stay in place.
ASCII = str.maketrans({
    "█": "#", "▒": "%", "░": "-", "·": ".", "▶": ">", "◀": "<", "─": "-", "┌": "+", "┐": "+", "└": "+", "┘": "+", "━": "=",
    "±": "~", "×": "x", "▁": "_", "▂": "_", "▃": "-", "▄": "-", "▅": "=", "▆": "=", "▇": "#", "—": "-",
})  # fmt: skip


@dataclass(slots=True)
class History:
    """The facts that a single report does not hold: the returns so far and the last evaluation."""

    returns: list[float] = field(default_factory=list)
    evaluation: Evaluation | None = None

    def add(self, report: Report) -> None:
        if report.recorded and report.return_mean is not None:
            self.returns.append(report.return_mean)
        self.evaluation = report.evaluation or self.evaluation


def picture(report: Report, program: Program, history: History, *, on: str, rows: int = 8) -> Group:
    """Draw the whole view, with at most ``rows`` lines of workers."""
    return Group(
        _title(program, on),
        Text(""),
        *_ring(program),
        Text(""),
        *balance_lines(report.balance, rows),
        Text(""),
        _speed(report, program),
        _returns(report, history),
        *_info(report),
        *(
            Text(f"acting {line}", overflow="crop", no_wrap=True)
            for line in acting_lines(program.placement.acting_precision, report.metrics)
        ),
        *_evaluation(history.evaluation, report),
        *([Text(starting(report.phases), overflow="ellipsis", no_wrap=True)] if report.phases else []),
        *(Text(line, overflow="ellipsis", no_wrap=True) for line in site_lines(report.sites)),
        *([Text(loudest(report), overflow="ellipsis", no_wrap=True)] if report.printed else []),
        *([Text(evaluating(report.evaluating), no_wrap=True)] if report.evaluating is not None else []),
        Text(""),
        Text(report.verdict, style="bold", overflow="fold"),
        *([Text(also(report.remedies), overflow="ellipsis", no_wrap=True)] if len(report.remedies) > 1 else []),
        *alarm_lines(report.alarms),
        _progress(report, program),
    )


def also(remedies: Sequence[Remedy]) -> str:
    """The remedies that come after the one in the verdict, with what each would gain alone."""
    return "or: " + ", ".join(f"{one.change} ({one.gain:.1f} times)" for one in remedies[1:4])


def _title(program: Program, on: str) -> Text:
    line = Text("equipoise ", style="bold", overflow="crop", no_wrap=True)
    several = len(program.policies) > 1
    names = [
        (f"{name} " if several else "")
        + (f"past of {policy.of}" if isinstance(policy, Frozen) else type(policy.algorithm).__name__.lower())
        for name, policy in program.policies.items()
    ]
    return line.append(f"{program.name} · {', '.join(names)} · seed {program.schedule.seed} · {on}", style="not bold")


def _ring(program: Program) -> list[Text]:
    actors = f"┌─▶ {_count(program.actors, 'actor')} × {_count(program.placement.envs_per_actor, 'env')} "
    if program.placement.inference == "central":
        actors += f"─▶ {_count(program.placement.inference_workers, 'inference worker')} "
    each = (one.replay.shards for one in learning(program).values() if one.replay is not None)
    shards = sum(shards for shards in each if shards > 1)
    middle = f" trajectories ─▶ {_count(shards, 'shard') if shards else 'queue'} ── batches "
    learner = "▶ learner ─┐"
    if not program.actors:
        actors, middle = "┌── data set ", " batches "
    weights = f"◀ weights (max lag {'none' if program.placement.max_lag is None else program.placement.max_lag}) "
    dashes = max(WIDTH - len(actors) - len(middle) - len(learner), 2)
    top = actors + "─" * (dashes // 2) + middle + "─" * (dashes - dashes // 2) + learner
    under = "└" + weights.center(len(top) - 2, "─") + "┘"
    return [Text(line, style="cyan", no_wrap=True) for line in (top, under)]


def site_lines(sites: Mapping[str, SiteStats]) -> list[str]:
    """A line for each site, or one for all of many."""
    if len(sites) <= SITES:
        return [f"{name} on {site.machine or 'no machine'}: {_site(site)}" for name, site in sites.items()]
    each = list(sites.values())
    return [f"{len(each)} sites: {_site(added(each))}, {sum(not site.reached for site in each)} out of reach"]


def added(sites: Sequence[SiteStats]) -> SiteStats:
    """Add up the numbers of several sites."""
    numbers = ("received", "sent", "lost", "moved")
    workers = tuple(title for site in sites for title in site.workers)
    return SiteStats(
        machine="", workers=workers, reached=all(site.reached for site in sites),
        **{name: sum(getattr(site, name) for site in sites) for name in numbers},
    )  # fmt: skip


def _site(site: SiteStats) -> str:
    said = [_count(len(site.workers), "worker"), f"{decimal(site.received)} received, {decimal(site.sent)} sent"]
    said += [f"{n:,} {what}" for n, what in ((site.lost, "times lost"), (site.moved, "times moved")) if n]
    said += ["out of reach"] * (not site.reached)
    return ", ".join(said)


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


# ------------------------------------------------------------------------------------------------------------------ shares


def balance_lines(balance: Mapping[str, Shares], rows: int = 8) -> list[Text]:
    """The legend as a head, and a line for each worker; beyond ``rows`` workers the actors share one line."""
    head = Text(" " * (NAME + BAR), no_wrap=True)
    for state, width in zip(STATES, COLUMNS, strict=True):
        head.append(f"{MARKS[state]} {state}".rjust(width), style=STYLES[state])
    return [head, *(_worker(name, shares) for name, shares in _fold(balance, rows))]


def _fold(balance: Mapping[str, Shares], rows: int) -> list[tuple[str, Shares]]:
    """Order the workers as in the ring, actors first."""
    actors = [(name, shares) for name, shares in balance.items() if shares.side == "sampling" and not shares.serves]
    others = [one for one in balance.items() if one not in actors]
    if len(balance) > rows and len(actors) > 1:
        actors = [(f"{len(actors)} actors", add(shares for _, shares in actors))]
    return actors + others


def _worker(name: str, shares: Shares) -> Text:
    line = Text(f"{name[: NAME - 1]:<{NAME}}", no_wrap=True)
    for state, cells in zip(STATES, cells_of([shares.share(state) for state in STATES], BAR), strict=True):
        line.append(MARKS[state] * cells, style=STYLES[state])
    line.append(" " * (NAME + BAR - len(line)))
    for state, width in zip(STATES, COLUMNS, strict=True):
        share = f"{shares.share(state) * 100:.0f} %" if shares.total > 0 else "—"
        line.append(share.rjust(width))
    return line


def cells_of(shares: Sequence[float], width: int) -> list[int]:
    """Whole cells for shares that sum to 1: they fill ``width``, each within one cell of its share."""
    if sum(shares) <= 0:
        return [0] * len(shares)
    exact = [share * width for share in shares]
    cells = [int(x) for x in exact]
    by_rest = sorted(range(len(shares)), key=lambda i: cells[i] - exact[i])
    for i in by_rest[: width - sum(cells)]:
        cells[i] += 1
    return cells


# ----------------------------------------------------------------------------------------------------------------- numbers


def lag_name(program: Program) -> str:
    """The name of a report's lag: versions of the acting weights, or the age of a replay's rows."""
    return "lag" if all(policy.replay is None for policy in learning(program).values()) else "age of rows"


def _lag(report: Report, program: Program) -> str:
    if lag_name(program) == "lag":
        return f"lag {report.lag_mean:.1f} (max {report.lag_max})"
    age = f"{report.lag_mean:.1f}" if report.lag_mean < MANY else short(round(report.lag_mean))
    return f"rows {age} versions old (at most {short(report.lag_max)})"


def _speed(report: Report, program: Program) -> Text:
    frames = report.steps_per_s * report.frames / report.env_steps if report.env_steps else 0.0
    parts = [f"{report.steps_per_s:,.0f} steps/s"]
    if report.frames != report.env_steps:
        parts.append(f"{frames:,.0f} frames/s")
    parts += [f"{report.updates_per_s:,.1f} updates/s", _lag(report, program)]
    return Text("   ".join(parts), no_wrap=True)


def _returns(report: Report, history: History) -> Text:
    line = Text(f"return {number(report.return_mean)} ", no_wrap=True)
    line.append(sparkline(history.returns, SPARKLINE), style="cyan")
    length = "" if report.length_mean is None else f"   length {report.length_mean:.0f}"
    return line.append(f"   {report.episodes:,} episodes{length}")


def info_rows(info: Mapping[str, float | None]) -> dict[str, str]:
    """The metrics from the env's info by name: at the ends of episodes, and as means over their steps."""
    names = [name.removesuffix("/last") for name in info if name.endswith("/last")]
    last, mean = ([number(info[f"{name}/{what}"], 3) for name in names] for what in ("last", "mean"))
    return {name: f"{x} at the end, {y} on average" for name, x, y in zip(names, last, mean, strict=True)}


def _info(report: Report) -> list[Text]:
    rows = list(info_rows(report.info).items())[:MOST_INFO]
    return [Text(f"{name} {said}", overflow="crop", no_wrap=True) for name, said in rows]


ACTING = {  # the effect of rounded weights (actors/forward/rounding.py)
    "p_error": "|p - p of fp32|", "logp_error": "|log p - log p of fp32|", "best_error": "|action - action of fp32|",
}  # fmt: skip


def acting_lines(weights: str, errors: Mapping[str, float]) -> list[str]:
    """One line a policy from the metrics ``acting/...`` and ``POLICY/acting/...``."""
    found = []
    for name, mean in errors.items():
        room, separator, kind = name.rpartition("acting/")
        if not separator or kind.endswith("_max"):
            continue
        said = f"{mean:.2%} of greedy actions as of fp32"
        if kind != "equal_best":
            what = kind.removesuffix("_mean")
            said = f"{ACTING[what]} {mean:.2g} on average, at most {errors[f'{room}acting/{what}_max']:.2g}"
        found.append(f"{room.rstrip('/')} {weights}: {said}".lstrip())
    return found


def starting(phases: Mapping[str, str]) -> str:
    """What the workers are at that do not work yet."""
    return "starting: " + "; ".join(f"{name}: {text}" for name, text in phases.items())


def loudest(report: Report) -> str:
    """The worker that printed most: how many lines, and the last of them."""
    name, (lines, last) = max(report.printed.items(), key=lambda one: one[1][0])
    said = "".join(c for c in last if c.isprintable())
    return f"{name} printed {_count(lines, 'line')}, the last: {said}"


def _evaluation(evaluation: Evaluation | None, report: Report) -> list[Text]:
    if evaluation is None:
        return []
    line = Text(f"evaluation {spread(evaluation.mean, evaluation.std)}", no_wrap=True)
    more = by_policy(evaluation.policies) + at_the_ends(evaluation.info)
    line.append(f"   {evaluation.episodes} episodes at {short(evaluation.step)} steps{more}")
    if report.solved_at_s is not None:
        line.append(f"   solved after {took(report.solved_at_s)}", style="bold green")
    return [line]


def evaluating(exam: Evaluating) -> str:
    """The progress of an evaluation. Returns come only with ends, so the steps show that something happens."""
    return f"evaluating {exam.episodes:,} of {exam.of:,} episodes, step {exam.steps:,} (at most {exam.most:,})"


def by_policy(means: Mapping[str, float]) -> str:
    """The text after the mean return where there are several policies."""
    return "".join(f"   {name} {number(mean)}" for name, mean in means.items())


def at_the_ends(info: Mapping[str, float | None]) -> str:
    """The text after an evaluation's return: the metrics from the env's info as its episodes ended."""
    return "".join(f"   {name.removesuffix('/last')} {number(x, 3)}" for name, x in info.items() if name.endswith("/last"))


def alarm_lines(alarms: Sequence[Alarm]) -> list[Text]:
    """One line for each of the newest alarms."""
    more = [] if len(alarms) <= MOST_ALARMS else [Text(f"and {_count(len(alarms) - MOST_ALARMS, 'alarm')} before", style="red")]
    return [
        Text(f"alarm: {one.name} ({one.owner}): {one.evidence}", style="bold red", overflow="ellipsis", no_wrap=True)
        for one in alarms[-MOST_ALARMS:]
    ] + more


def _progress(report: Report, program: Program) -> Text:
    share = min(report.step / program.schedule.steps, 1.0)
    cells = int(share * PROGRESS)
    line = Text("━" * cells, style="green", no_wrap=True).append("─" * (PROGRESS - cells), style="bright_black")
    done = f"{short(report.step)} of {short(program.schedule.steps)}"
    left = "" if report.remaining_s is None else f", {clock(report.remaining_s)} left"
    text = f"  {share * 100:.0f} %  {done} steps{_ahead(report)}  {clock(report.wall_s)} gone{left}"
    return line.append(text, style="default")


def _ahead(report: Report) -> str:
    """The steps that were taken, where learning is far behind them."""
    return f" ({short(report.taken)} taken)" if report.taken > AHEAD * report.env_steps else ""


def line_parts(report: Report, program: Program, history: History) -> list[str]:
    """One line for a log file, in parts: the numbers that change, and the first word of the verdict."""
    found = [
        f"{clock(report.wall_s)}",
        f"{min(report.step / program.schedule.steps, 1.0) * 100:3.0f} %",
        f"{short(report.step)} steps{_ahead(report)}",
        f"{report.steps_per_s:,.0f}/s",
        f"return {number(report.return_mean)}",
        _lag(report, program),
        cause_of(report.verdict),
    ]
    found += [f"{name.removesuffix('/last')} {number(x, 3)}" for name, x in report.info.items() if name.endswith("/last")]
    if report.evaluating is not None:
        found.append(evaluating(report.evaluating))
    if report.phases:
        found.append(starting(report.phases))
    if history.evaluation is not None:
        found.insert(5, f"evaluation {spread(history.evaluation.mean, history.evaluation.std)}")
    return found


def sparkline(values: Sequence[float], width: int) -> str:
    """The values as a row of at most ``width`` bars, from the lowest to the highest; a bar is the mean of its share."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [i * len(values) // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((x - low) * scale)] for x in means)


def number(value: float | None, decimals: int = 1) -> str:
    """A return to one decimal; a dash where there is none yet."""
    return "—" if value is None else f"{value:,.{decimals}f}"


def spread(mean: float, std: float) -> str:
    return f"{mean:,.1f} ± {std:,.1f}"


def short(count: int) -> str:
    """12,288 as 12.3k, three figures of any number."""
    for scale, suffix in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        share = count / scale
        if share >= 0.9995:  # a share that rounds to 1
            return f"{share:.3g}{suffix}" if share < 999.5 else f"{share:,.0f}{suffix}"
    return str(count)


def took(seconds: float) -> str:
    """12.3 s, and 12:34 where tenths do not matter."""
    return f"{seconds:.1f} s" if seconds < 100 else clock(seconds)


def clock(seconds: float) -> str:
    """0:07, 12:34, 1:02:03."""
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"
