"""Pieces of the live view as text: a report in, lines of at most ``width`` columns out. The code
here is independent of a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rich.filesize import decimal
from rich.text import Text

from equipoise.balance.alarms import Alarm
from equipoise.balance.remedies import Remedy, sure
from equipoise.balance.verdict import EARLY, NOTHING_YET, STARTING, WAITING
from equipoise.console.braille import Series, in_ascii
from equipoise.console.place import joined, number, wrapped
from equipoise.record.report import Evaluating, Evaluation, Report, SiteStats
from equipoise.record.ring import Rates, count, short
from equipoise.record.series import lag_name
from equipoise.types import Frozen, Program

WIDTH = 80  # columns if the terminal does not report a width
PROGRESS, SPARKLINE = 20, 24
MANY = 100  # versions; the lag above it has no tenths
AHEAD = 1.1  # steps taken, in units of the steps learned from, above which both are shown
HOLD_S = 30.0  # that a verdict stays in the picture
NONE_YET = ("", STARTING.cause, EARLY.cause, NOTHING_YET.cause, WAITING.cause)  # replaced at once
SITES = 4  # that have a line each
MOST_ALARMS = 3  # that have a line each
MOST_INFO = 5  # lines of numbers from the env's info
SPARKS = "▁▂▃▄▅▆▇█"
# Replacements for encodings other than UTF-8: one character for one, so that styles stay in place.
ASCII = str.maketrans(
    {
        "█": "#",
        "▒": "%",
        "░": "-",
        "·": ".",
        "▶": ">",
        "◀": "<",
        "▲": "^",
        "▼": "v",
        "─": "-",
        "┌": "+",
        "└": "+",
        "━": "=",
        "│": "|",
        "┃": "|",
        "╎": ":",
        "↑": "^",
        "↓": "v",
        "±": "~",
        "×": "x",
        "▁": "_",
        "▂": "_",
        "▃": "-",
        "▄": "-",
        "▅": "=",
        "▆": "=",
        "▇": "#",
        "—": "-",
        **in_ascii(),
    }
)


@dataclass(slots=True)
class History:
    """The facts that a single report does not hold: curves and notes so far, the last evaluation,
    rates, and the verdict that is shown.
    """

    returns: Series = field(default_factory=Series)
    losses: Series = field(default_factory=Series)
    loss: str = ""  # the metric in ``losses``
    evaluation: Evaluation | None = None
    # with the seconds since the run began
    notes: list[tuple[float, str]] = field(default_factory=list)
    rates: Rates = field(default_factory=Rates)
    cause: str = ""  # of the verdict that is shown
    verdict: str = ""
    since: float = 0.0  # seconds of the run at which this cause was first shown

    def add(self, report: Report) -> None:
        if report.recorded and not report.final:
            if report.return_mean is not None:
                self.returns.add(report.step, report.return_mean)
            self.loss = self.loss or loss_of(report.metrics)
            if (value := report.metrics.get(self.loss)) is not None:
                self.losses.add(report.step, value)
        self.evaluation = report.evaluation or self.evaluation
        self.notes += [(report.wall_s, note) for note in report.notes]
        self.rates.add(report)
        self._hold(report)

    def _hold(self, report: Report) -> None:
        """Take the report's verdict, or keep the one before for ``HOLD_S``."""
        changed = report.cause != self.cause
        early = self.cause in NONE_YET
        if changed and not early and not report.final and report.wall_s - self.since < HOLD_S:
            return
        if changed:
            self.since = report.wall_s
        self.cause, self.verdict = report.cause, report.verdict


def loss_of(metrics: Mapping[str, float]) -> str:
    """Return the name of the metric that is drawn as the loss, or "" if there is none."""
    endings = ("loss", "policy_loss", "critic_loss", "q_loss")
    ranked = [name for end in endings for name in metrics if name.rpartition("/")[2] == end]
    return next(iter([*ranked, *(name for name in metrics if name.endswith("_loss"))]), "")


def text_lines(said: str, width: int, style: str = "", indent: str = "  ") -> list[Text]:
    """A text in lines that are broken between words."""
    return [
        Text(line, style=style, no_wrap=True, overflow="crop")
        for line in wrapped(said, width, indent)
    ]


def part_lines(parts: Sequence[str], width: int) -> list[Text]:
    """Parts side by side, in lines that are broken between parts."""
    return [Text(line, no_wrap=True, overflow="crop") for line in joined(parts, width, "  ")]


def also(remedies: Sequence[Remedy]) -> str:
    """The suggestions after the one in the verdict, each with its gain alone; "" without any."""
    said = [f"{one.change} ({one.gain:.1f} times)" for one in sure(remedies)[1:4]]
    return f"or: {', '.join(said)}" if said else ""


def title_lines(program: Program, on: str, width: int) -> list[Text]:
    several = len(program.policies) > 1
    names = [
        (f"{name} " if several else "")
        + (
            f"past of {policy.of}"
            if isinstance(policy, Frozen)
            else type(policy.algorithm).__name__.lower()
        )
        for name, policy in program.policies.items()
    ]
    said = f"equipoise {program.name} · {', '.join(names)} · seed {program.schedule.seed} · {on}"
    lines = text_lines(said, width)
    lines[0].stylize("bold", 0, len("equipoise"))
    return lines


def site_lines(sites: Mapping[str, SiteStats]) -> list[str]:
    """A line for each site, or one for all of many."""
    if len(sites) <= SITES:
        return [
            f"{name} on {site.machine or 'no machine'}: {_site(site)}"
            for name, site in sites.items()
        ]
    each = list(sites.values())
    return [
        f"{len(each)} sites: {_site(added(each))}, {sum(not site.reached for site in each)} out of "
        "reach"
    ]


def added(sites: Sequence[SiteStats]) -> SiteStats:
    """Add up the numbers of several sites."""
    numbers = ("received", "sent", "lost", "moved")
    workers = tuple(title for site in sites for title in site.workers)
    return SiteStats(
        machine="",
        workers=workers,
        reached=all(site.reached for site in sites),
        **{name: sum(getattr(site, name) for site in sites) for name in numbers},
    )


def _site(site: SiteStats) -> str:
    said = [
        count(len(site.workers), "worker"),
        f"{decimal(site.received)} received, {decimal(site.sent)} sent",
    ]
    said += [
        f"{n:,} {what}" for n, what in ((site.lost, "times lost"), (site.moved, "times moved")) if n
    ]
    said += ["out of reach"] * (not site.reached)
    return ", ".join(said)


# ------------------------------------------------------------------------------------------ numbers


def _lag(report: Report, program: Program) -> str:
    if lag_name(program) == "lag":
        return f"lag {report.lag_mean:.1f} (max {report.lag_max})"
    age = f"{report.lag_mean:.1f}" if report.lag_mean < MANY else short(round(report.lag_mean))
    return f"rows {age} versions old (at most {short(report.lag_max)})"


def speed_lines(report: Report, program: Program, width: int) -> list[Text]:
    frames = report.steps_per_s * report.frames / report.env_steps if report.env_steps else 0.0
    parts = [f"{report.steps_per_s:,.0f} steps/s"]
    if report.frames != report.env_steps:
        parts.append(f"{frames:,.0f} frames/s")
    if report.tokens_per_s is not None:
        parts.append(f"{report.tokens_per_s:,.0f} tokens/s")
    return part_lines(
        [*parts, f"{report.updates_per_s:,.1f} updates/s", _lag(report, program)], width
    )


def return_lines(
    report: Report, history: History, width: int, *, drawn: bool = False
) -> list[Text]:
    """The mean return; ``drawn``: a plot of it stands below, so no sparkline is needed."""
    sparks = "" if drawn else sparkline(history.returns.values, SPARKLINE)
    parts = [f"return {number(report.return_mean)} {sparks}".rstrip()]
    parts += [
        f"{report.episodes:,} episodes",
        *([] if report.length_mean is None else [f"length {report.length_mean:.0f}"]),
    ]
    lines = part_lines(parts, width)
    lines[0].highlight_regex(f"[{SPARKS}]+", "cyan")
    return lines


def info_rows(info: Mapping[str, float | None]) -> dict[str, str]:
    """The metrics from the env's info by name: at the ends of episodes, and as means over their
    steps.
    """
    names = [name.removesuffix("/last") for name in info if name.endswith("/last")]
    last, mean = (
        [number(info[f"{name}/{what}"], 3) for name in names] for what in ("last", "mean")
    )
    return {
        name: f"{x} at the end, {y} on average"
        for name, x, y in zip(names, last, mean, strict=True)
    }


def info_lines(report: Report, width: int) -> list[Text]:
    rows = list(info_rows(report.info).items())[:MOST_INFO]
    return [line for name, said in rows for line in text_lines(f"{name} {said}", width)]


def term_rows(metrics: Mapping[str, float]) -> list[str]:
    """The mean per step of each term of the sum of rewards, as ``reward_rnd 0.0123``."""
    return [
        f"{name} {mean:.3g}"
        for name, mean in metrics.items()
        if name.rpartition("/")[2].startswith("reward_")
    ]


def term_lines(report: Report, width: int) -> list[Text]:
    rows = term_rows(report.metrics)
    return part_lines(rows, width) if rows else []


ACTING = {  # the effect of rounded weights (actors/forward/rounding.py)
    "p_error": "|p - p of fp32|",
    "logp_error": "|log p - log p of fp32|",
    "best_error": "|action - action of fp32|",
}


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
            said = (
                f"{ACTING[what]} {mean:.2g} on average, at most "
                f"{errors[f'{room}acting/{what}_max']:.2g}"
            )
        found.append(f"{room.rstrip('/')} {weights}: {said}".lstrip())
    return found


def starting(phases: Mapping[str, str]) -> str:
    """The start's phase of each worker that does not work yet."""
    return "starting: " + "; ".join(f"{name}: {text}" for name, text in phases.items())


def loudest(report: Report) -> str:
    """The worker that printed most: its number of lines, and the last line."""
    name, (lines, last) = max(report.printed.items(), key=lambda one: one[1][0])
    said = "".join(c for c in last if c.isprintable())
    return f"{name} printed {count(lines, 'line')}, the last: {said}"


def evaluation_lines(evaluation: Evaluation | None, report: Report, width: int) -> list[Text]:
    if evaluation is None:
        return []
    parts = [f"evaluation {spread(evaluation.mean, evaluation.std)}"]
    parts += [f"{evaluation.episodes} episodes at {short(evaluation.step)} steps"]
    parts += [f"{name} {number(mean)}" for name, mean in evaluation.policies.items()]
    parts += [
        f"{name.removesuffix('/last')} {number(x, 3)}"
        for name, x in evaluation.info.items()
        if name.endswith("/last")
    ]
    parts += [] if report.solved_at_s is None else [f"solved after {took(report.solved_at_s)}"]
    lines = part_lines(parts, width)
    lines[-1].highlight_regex("solved after .*", "bold green")
    return lines


def evaluating(exam: Evaluating) -> str:
    """The progress of an evaluation. Returns come only with ends, so the steps show that something
    happens.
    """
    return (
        f"evaluating {exam.episodes:,} of {exam.of:,} episodes, step {exam.steps:,} (at most "
        f"{exam.most:,})"
    )


def by_policy(means: Mapping[str, float]) -> str:
    """The text after the mean return if there are several policies."""
    return "".join(f"   {name} {number(mean)}" for name, mean in means.items())


def at_the_ends(info: Mapping[str, float | None]) -> str:
    """The text after an evaluation's return:
    the metrics from the env's info as its episodes ended.
    """
    return "".join(
        f"   {name.removesuffix('/last')} {number(x, 3)}"
        for name, x in info.items()
        if name.endswith("/last")
    )


def alarm_lines(alarms: Sequence[Alarm], width: int) -> list[Text]:
    """The newest alarms, and how many there were before."""
    shown, before = alarms[-MOST_ALARMS:], len(alarms[:-MOST_ALARMS])
    lines = [
        line
        for one in shown
        for line in text_lines(
            f"alarm: {one.name} ({one.owner}): {one.evidence}", width, "bold red"
        )
    ]
    return lines + ([Text(f"and {count(before, 'alarm')} before", style="red")] if before else [])


def progress_lines(report: Report, program: Program, width: int) -> list[Text]:
    share = min(report.step / program.schedule.steps, 1.0)
    left = "" if report.remaining_s is None else f", ETA {clock(report.remaining_s)}"
    done = f"{short(report.step)} of {short(program.schedule.steps)} steps{_ahead(report)}"
    parts = [f"{share * 100:.0f} %", done, f"{clock(report.wall_s)} elapsed{left}"]
    columns = min(width - len("  ".join(["", *parts])), PROGRESS)
    if columns < PROGRESS // 4:
        return part_lines(parts, width)
    cells = int(share * columns)
    line = Text("━" * cells, style="green", no_wrap=True).append(
        "─" * (columns - cells), style="bright_black"
    )
    return [line.append("  " + "  ".join(parts), style="default")]


def _ahead(report: Report) -> str:
    """The steps that were taken, if learning is far behind them."""
    return f" ({short(report.taken)} taken)" if report.taken > AHEAD * report.env_steps else ""


def line_parts(report: Report, program: Program, history: History) -> list[str]:
    """One line for a log file, in parts: the numbers that change, and the first word of the
    verdict.
    """
    found = [
        f"{clock(report.wall_s)}",
        f"{min(report.step / program.schedule.steps, 1.0) * 100:3.0f} %",
        f"{short(report.step)} steps{_ahead(report)}",
        f"{report.steps_per_s:,.0f}/s",
        f"return {number(report.return_mean)}",
        _lag(report, program),
        history.cause or report.cause,
    ]
    found += [
        f"{name.removesuffix('/last')} {number(x, 3)}"
        for name, x in report.info.items()
        if name.endswith("/last")
    ]
    found += term_rows(report.metrics)
    if report.evaluating is not None:
        found.append(evaluating(report.evaluating))
    if report.phases:
        found.append(starting(report.phases))
    if history.evaluation is not None:
        found.insert(5, f"evaluation {spread(history.evaluation.mean, history.evaluation.std)}")
    return found


def sparkline(values: Sequence[float], width: int) -> str:
    """The values as a row of at most ``width`` bars, from the lowest to the highest; a bar is the
    mean of its share.
    """
    if not values:
        return ""
    count = min(width, len(values))
    edges = [i * len(values) // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((x - low) * scale)] for x in means)


def spread(mean: float, std: float) -> str:
    return f"{mean:,.1f} ± {std:,.1f}"


def brief(seconds: float) -> str:
    """12.3 us, 4.56 ms, 1.2 s: of a piece of work."""
    for scale, unit in ((1e-3, "us"), (1.0, "ms")):
        if seconds < 0.9995 * scale:  # else it rounds to the next unit
            return f"{seconds / scale * 1e3:.3g} {unit}"
    return f"{seconds:.3g} s"


def took(seconds: float) -> str:
    """12.3 s, and 12:34 from 100 seconds on."""
    return f"{seconds:.1f} s" if seconds < 100 else clock(seconds)


def clock(seconds: float) -> str:
    """0:07, 12:34, 1:02:03."""
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"
