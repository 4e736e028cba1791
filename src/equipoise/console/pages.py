"""The pages of the live view, and the keys that switch them: a report in,
the lines of a page out.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Group
from rich.filesize import decimal
from rich.text import Text

from equipoise.balance.remedies import sure
from equipoise.console.bars import balance_lines
from equipoise.console.braille import GAP, LEAST_ROWS, MOST_ROWS, plot, side_by_side
from equipoise.console.picture import (
    WIDTH,
    History,
    acting_lines,
    alarm_lines,
    also,
    clock,
    evaluating,
    evaluation_lines,
    info_lines,
    loudest,
    part_lines,
    progress_lines,
    return_lines,
    speed_lines,
    starting,
    term_lines,
    text_lines,
    title_lines,
)
from equipoise.console.place import number, printable
from equipoise.console.ring import ring_lines
from equipoise.record.report import Report
from equipoise.record.ring import count
from equipoise.types import Program

RING, WORKERS, REMEDIES, ALARMS = PAGES = "1", "2", "3", "4"
NAMES = {RING: "run", WORKERS: "workers", REMEDIES: "suggestions", ALARMS: "alarms"}
STEPS = {"down": 1, "up": -1, "page down": 10, "page up": -10, "j": 1, "k": -1}  # lines
MOST_WORKERS = 100  # that have a line each
TWO_PLOTS = 70  # columns from which two plots stand side by side
WITH_PLOT = 18  # spare lines from which the run's page shows workers below a plot
ROOM = 60  # lines of a page without a height, as in a notebook
QUITS = "q does not end a run; Ctrl-C does, and saves it"


@dataclass(slots=True)
class Shown:
    """The part of the view that is shown, as keys change it."""

    # one of ``PAGES``; "": no keys are read, and the run and the workers are one page
    page: str = ""
    parts: bool = False  # of the workers
    top: int = 0  # lines of the page above the first that is shown
    quits: bool = False  # was the last key one that ends other programs?

    def press(self, key: str) -> None:
        self.quits = key in ("q", "Q", "?")
        if key in PAGES:
            self.page, self.top = key, 0
        elif key == "p":
            self.page, self.parts, self.top = WORKERS, not (self.parts and self.page == WORKERS), 0
        elif key in STEPS:
            self.top = max(self.top + STEPS[key], 0)


def view(
    report: Report,
    program: Program,
    history: History,
    *,
    on: str,
    width: int = WIDTH,
    height: int | None = None,
    shown: Shown | None = None,
) -> Group:
    """Draw a page with the title above and the progress and the keys below it, in at most
    ``height`` lines.
    """
    shown = shown or Shown()
    head = [*title_lines(program, on, width), Text("")]
    foot = [Text(""), *progress_lines(report, program, width)]
    foot += [_keys(report, shown, width)] if shown.page else []
    room = ROOM if height is None else max(height - len(head) - len(foot), 1)
    body = _body(report, program, history, width, room, shown)
    shown.top = min(shown.top, max(len(body) - room, 0))
    if len(body) > room:
        foot[0] = Text(
            f"lines {shown.top + 1} to {shown.top + room} of {len(body)}",
            style="bright_black",
            no_wrap=True,
        )
        body = body[shown.top : shown.top + room]
    return Group(*head, *body, *foot)


def _body(
    report: Report, program: Program, history: History, width: int, room: int, shown: Shown
) -> list[Text]:
    if shown.page == WORKERS:
        return balance_lines(
            report.balance, MOST_WORKERS, width, _usage(report, history) if shown.parts else None
        )
    if shown.page == REMEDIES:
        return _remedies(report, history, width)
    if shown.page == ALARMS:
        return _alarms(report, history, width)
    numbers = _numbers(report, program, history, width, shown)
    ring = ring_lines(report, program, history, width)
    left = room - len(numbers) - 1 - len(ring)
    # workers stand below an empty line and a head
    least = WITH_PLOT if shown.page else 4  # a page of its own has the workers
    workers = (
        [Text(""), *balance_lines(report.balance, 8, width)]
        if left >= least and report.balance
        else []
    )
    workers = workers[:left]
    curves = _curves(report, history, width, left - len(workers) - 1)
    if curves:
        numbers = _numbers(report, program, history, width, shown, drawn=True)
        curves = [Text(""), *curves]
    return [*numbers, *curves, Text(""), *ring, *workers]


def _curves(report: Report, history: History, width: int, room: int) -> list[Text]:
    """Plots of the return and of the loss in at most ``room`` lines, if that is enough."""
    rows = min(room, MOST_ROWS)
    if rows < LEAST_ROWS or len(history.returns.values) < 2:
        return []
    returns = f"return {number(report.return_mean)}"
    two = width >= TWO_PLOTS and len(history.losses.values) > 1
    each = (width - GAP) // 2 if two else width
    plots = [plot(returns, history.returns, each, rows, "cyan")]
    if two:
        plots.append(plot(history.loss, history.losses, each, rows, "magenta"))
    return side_by_side(plots, each)


def _numbers(
    report: Report,
    program: Program,
    history: History,
    width: int,
    shown: Shown,
    *,
    drawn: bool = False,
) -> list[Text]:
    """Return, speed, what a person should know of the moment, and the verdict.

    ``drawn``: a plot of the return stands below.
    """
    moment = [
        f"acting {line}"
        for line in acting_lines(program.placement.acting_precision, report.metrics)
    ]
    moment += [starting(report.phases)] if report.phases else []
    # a page of its own has all of them
    moment += [loudest(report)] if report.printed and not shown.page else []
    moment += [evaluating(report.evaluating)] if report.evaluating is not None else []
    or_else = also(report.remedies) if history.cause in ("", report.cause) else ""
    return [
        *return_lines(report, history, width, drawn=drawn),
        *evaluation_lines(history.evaluation, report, width),
        *info_lines(report, width),
        *term_lines(report, width),
        *speed_lines(report, program, width),
        *(line for one in moment for line in text_lines(one, width)),
        *text_lines(history.verdict or report.verdict, width, "bold", indent="  "),
        *(text_lines(or_else, width) if or_else else []),
        *alarm_lines(report.alarms, width),
    ]


def _usage(report: Report, history: History) -> dict[str, str]:
    """Cores and memory of each worker, if the system reports them."""
    return {
        name: f"{history.rates.cores(name):.2f} cores, {decimal(round(one['rss']))}"
        for name, one in report.usage.items()
    }


def _remedies(report: Report, history: History, width: int) -> list[Text]:
    """The verdict, and each sure change with its gain, the interval of that, and its cost."""
    verdict = history.verdict or report.verdict
    lines = [*text_lines(verdict, width, "bold", indent=""), Text("")]
    if not (found := sure(report.remedies)):
        none = (
            "No change is sure to help so far. The model is asked every ten seconds, not with "
            "--on serial or --on ray."
        )
        return lines + text_lines(none, width, indent="")
    for one in found:
        gain = (
            f"{one.gain:.2f} times the steps/s ({one.low:.2f} to {one.high:.2f}): about "
            f"{one.steps_per_s:,.0f}"
        )
        lines += text_lines(one.change, width, "bold")
        lines += part_lines([f"  {gain}", *([f"costs: {one.costs}"] if one.costs else [])], width)
    return lines


def _alarms(report: Report, history: History, width: int) -> list[Text]:
    """Alarms with evidence and action, then notes; of both the newest first."""
    lines = [] if report.alarms else [Text("no alarms", no_wrap=True)]
    for one in reversed(report.alarms):
        lines += text_lines(
            f"{clock(one.wall_s)}  {one.name} ({one.owner}) at step {one.step:,}", width, "bold red"
        )
        lines += text_lines(f"      {one.evidence}", width, indent=" " * 6)
        lines += text_lines(f"      {one.action}", width, "bold", indent=" " * 6)
    said = (
        [f"{count(report.aborted, 'episode')} aborted by failures of the env"]
        if report.aborted
        else []
    )
    said += [
        f"{name} printed {count(n, 'line')}, the last: {printable(last)}"
        for name, (n, last) in report.printed.items()
    ]
    told = {f"warning: {one.text}" for one in report.alarms}
    said += [
        f"{clock(at)}  {printable(note)}"
        for at, note in reversed(history.notes)
        if note not in told
    ]
    return (
        lines
        + [Text("")] * bool(said)
        + [line for one in said for line in text_lines(one, width, indent=" " * 6)]
    )


def _keys(report: Report, shown: Shown, width: int) -> Text:
    """The keys in one line, as many as it has room for."""
    if shown.quits:
        return Text(QUITS, style="bold", no_wrap=True)
    alarms = f" ({len(report.alarms)})" if report.alarms else ""
    found = [f"{key} {name}{alarms if key == ALARMS else ''}" for key, name in NAMES.items()]
    found = [f"[{one}]" if one[0] == shown.page else one for one in found] + [
        "Ctrl-C ends",
        "p parts",
        "↑↓ move",
    ]
    while len("  ".join(found)) > width:
        found.pop()
    line = Text("  ".join(found), style="cyan", no_wrap=True)
    if alarms:
        line.highlight_words([f"{ALARMS} alarms{alarms}"], "bold red")
    return line
