"""The view of a run at a terminal: a live picture, or a line now and then, and a summary at the
end.

The live picture redraws when a report comes, at most ten times a second and in the driver's own
thread, which needs the time; and at once when a key is pressed, in the thread that waits for keys.
A pipe, a log file, a dumb terminal and a build server (CI) get plain lines. With NO_COLOR nothing
is coloured or bold. Lines are broken at the terminal's columns, or at the columns of COLUMNS; in a
pipe a message is one line.
"""

from __future__ import annotations

import shlex
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.text import Text

from equipoise.balance.shares import Shares
from equipoise.balance.verdict import WAITING
from equipoise.console.bars import balance_lines
from equipoise.console.keys import Keys, can_read
from equipoise.console.pages import RING, Shown, view
from equipoise.console.picture import (
    AHEAD,
    ASCII,
    WIDTH,
    History,
    acting_lines,
    at_the_ends,
    by_policy,
    clock,
    evaluating,
    info_rows,
    line_parts,
    site_lines,
    spread,
    took,
)
from equipoise.console.place import (
    in_colour,
    is_live,
    joined,
    number,
    printable,
    say,
    size_of,
    width_of,
    wrapped,
)
from equipoise.files import read_json
from equipoise.record.paths import CAPSULES
from equipoise.record.report import Evaluating, Report, SiteStats, repeated
from equipoise.record.ring import short
from equipoise.record.series import lag_name
from equipoise.sources.source import source_of, task_of
from equipoise.types import PROXY, Program

REDRAW_S = 0.1
LINE_S = 5.0
EVALUATION_S = 10.0  # between two lines of 'equipoise evaluate'
QUIET_S = 15.0  # after this time a quiet run prints the progress of its last evaluation
CONTINUED = " " * 6  # what is left of a line stands below, under what follows the time
OUTCOMES = {
    "completed": "Completed: all steps are done.",
    "solved": "Solved",
    "alarmed": "Ended by an alarm: the run up to here is saved.",
    "interrupted": "Interrupted: the run up to here is saved.",
    "failed": "Failed: the weights up to here are saved.",
}


class View:
    """A context manager around a run; ``update`` with each report, ``summarise`` after the end."""

    def __init__(
        self,
        program: Program,
        *,
        on: str,
        quiet: bool = False,
        console: Console | None = None,
        told: Collection[str] = (),
    ) -> None:
        """``told``: notes that the process which began the run has shown already."""
        self._told = {*told}
        self.console = make_console() if console is None else console
        self._program, self._on = program, on
        self._history = History()
        self._last: Report | None = None
        self._lines = 0  # of the picture
        self._live: Live | None = None
        self._keys: Keys | None = None
        self._shown, self._drawing = Shown(), threading.Lock()
        self._quiet = quiet
        self._next_draw, self._next_line = 0.0, 0.0
        self._exam_from: float | None = None  # when the last evaluation began
        if not quiet and self.console.is_interactive:
            self._live = Live(
                console=self.console,
                auto_refresh=False,
                transient=True,
                vertical_overflow="crop",
                redirect_stdout=False,
                redirect_stderr=False,
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
            self._live.update(self._safe(Text("starting the workers ...")), refresh=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._keys is not None:
                self._keys.__exit__()
        finally:
            if self._live is not None:
                self._live.stop()

    def update(self, report: Report) -> None:
        with self._drawing:
            self._history.add(report)
            self._last = report
        for note in report.notes:
            self._told.add(note)
            self._say(note)
        if (
            self._waits_long(report)
            and report.evaluating is not None
            and (self._quiet or self._live is None)
        ):
            self._print(evaluating(report.evaluating))
        if self._quiet:
            return
        if self._live is None:
            self._print_line(report)
            return
        self._read_keys()
        now = time.monotonic()
        if now >= self._next_draw or report.final:
            self._next_draw = now + REDRAW_S
            self._draw(self._live)

    def _read_keys(self) -> None:
        """Begin with the first report: a start may take long, and Ctrl-C and Ctrl-Z are then the
        system's.
        """
        if self._keys is not None:
            self._keys.tend()
        # a debugger also reads keys
        elif not self._shown.page and self._on != "serial" and can_read(self.console.file):
            self._shown.page = RING
            self._keys = Keys(self._press, self.console.file, lambda: self._lines).__enter__()

    def _press(self, keys: Sequence[str]) -> None:
        """Answer keys that came together, by one picture; the thread of the keys calls this."""
        for key in keys:
            self._shown.press(key)
        if self._live is not None:
            self._draw(self._live)

    def _draw(self, live: Live) -> None:
        with self._drawing:
            if self._last is None:
                return
            # rich asks the descriptors 0 to 2, which may go elsewhere
            if (size := size_of(self.console.file)) is not None:
                self.console.size = ConsoleDimensions(*size)
            width, height = self.console.size
            drawn = view(
                self._last,
                self._program,
                self._history,
                on=self._on,
                width=width,
                height=height - 1,
                shown=self._shown,
            )
            self._lines = len(drawn.renderables)
            live.update(self._safe(drawn), refresh=True)

    def _waits_long(self, report: Report) -> bool:
        """Is it time for a line on the last evaluation,
        in which the run's own clock stands still?
        """
        if report.evaluating is None or report.step < self._program.schedule.steps:
            return False
        now, every = time.monotonic(), QUIET_S if self._quiet else LINE_S
        if self._exam_from is None:
            self._exam_from = now
        if now - self._exam_from < every:
            return False
        self._exam_from = now
        return True

    def _say(self, note: str) -> None:
        """Print above the live picture; a warning is printed also with --quiet."""
        if note.startswith("warning") or not self._quiet:
            self._print(note, style="bold red" if note.startswith("warning") else "bold")

    def _print_line(self, report: Report) -> None:
        if report.cause == WAITING.cause and not report.final:
            return  # a note has the address, and nothing changes until an agent calls
        if report.wall_s >= self._next_line or report.final:
            self._next_line = report.wall_s + LINE_S
            lines = joined(
                line_parts(report, self._program, self._history),
                width_of(self.console.file),
                CONTINUED,
            )
            self.console.print(self._safe(Text("\n".join(lines))), soft_wrap=True)

    def _print(self, text: str, style: str = "") -> None:
        lines = wrapped(text, width_of(self.console.file), "  ")
        with self._drawing:
            self.console.print(self._safe(Text("\n".join(lines), style=style)), soft_wrap=True)

    def ending(self, text: str) -> None:
        """Print what the end of the run is at; another thread may call it."""
        if not self._quiet:
            self._print(f"ending: {text}")

    def summarise(self, summary: Mapping[str, Any], directory: Path) -> None:
        """Print the notes that no report was left to bring, the result, its directory, and what to
        do next.
        """
        for note in summary["notes"]:
            if note not in self._told:
                self._say(note)
        look, play = look_command(self._program, directory), play_command(self._program)
        print_summary(
            self.console, summary, directory, lag=lag_name(self._program), look=look, play=play
        )

    def _safe(self, renderable: RenderableType) -> RenderableType:
        return safe(renderable, self.console)


class Progress:
    """A callback for the progress of an evaluation: a line on stderr now and then, since stdout has
    the result.
    """

    def __init__(self) -> None:
        self._began = self._told = time.monotonic()

    def __call__(self, exam: Evaluating) -> None:
        now = time.monotonic()
        if now - self._told >= EVALUATION_S:
            self._told = now
            say(
                f"{clock(now - self._began)}  {evaluating(exam)}", file=sys.stderr, indent=CONTINUED
            )


def make_console() -> Console:
    """Make a console on stdout. Rich alone would assume 80 columns without a terminal, and take
    FORCE_COLOR for a terminal.
    """
    live = None if is_live(sys.stdout) else False
    return Console(
        highlight=False, color_system="auto" if in_colour() else None, force_interactive=live
    )


def safe(renderable: RenderableType, console: Console) -> RenderableType:
    """Replace the characters that an encoding other than UTF-8 does not have."""
    if console.encoding.lower().startswith("utf"):
        return renderable
    if isinstance(renderable, Group):
        return Group(*(safe(part, console) for part in renderable.renderables))
    if isinstance(renderable, Text):
        plain = renderable.copy()
        plain.plain = plain.plain.translate(ASCII)
        return plain
    return renderable


PLAY, VIDEO = "evaluate {}", "evaluate {} --video"


def look_command(program: Program, directory: Path | None = None) -> str:
    """The command that shows the policy of a run {} at work; "" without a picture or PyAV, and for
    several agents.
    """
    if (source := source_of(program)).writes:
        if source.scores:
            return ""
        settings = task_of(program)
        task = settings is not None and not settings.task.startswith(PROXY)
        texts = [one.get("text") for one in _specs(directory)]
        talks = task and any(isinstance(one, Mapping) and one.get("turns") for one in texts)
        return "generate {} --conversations 3" if talks else "generate {} --prompt TEXT"
    env = program.source.played
    if env is None or len(_agents(directory)) > 1 or find_spec("av") is None:
        return ""
    from equipoise.console.video import draws

    return VIDEO if draws(env) else ""


def play_command(program: Program) -> str:
    """The command that plays the policy of a run {}: on recorded rows if the run has no env; "" for
    texts without rewards.
    """
    return source_of(program).play_command()


def has_learned(directory: Path) -> bool:
    """Has a run weights to play, other than the weights of step 0? A run elsewhere counts as a run
    that has.
    """
    return not directory.is_dir() or any(directory.glob("checkpoints/step_[1-9]*"))


def _agents(directory: Path | None) -> list[str]:
    """The agents of a run's env, as its newest checkpoint has them; none without a checkpoint."""
    agents = [one.get("agents") for one in _specs(directory)]
    return [str(agent) for some in agents if isinstance(some, list) for agent in some]


def _specs(directory: Path | None) -> list[Mapping[str, object]]:
    """What the newest checkpoint of a run has about each policy; none without a checkpoint."""
    files = [] if directory is None else sorted(directory.glob("checkpoints/step_*/spec.json"))
    return [one for file in files[-1:] for one in read_json(file)["policies"].values()]


def print_summary(
    console: Console,
    summary: Mapping[str, Any],
    directory: Path,
    *,
    lag: str = "lag",
    look: str = VIDEO,
    play: str = PLAY,
) -> None:
    """Print a summary. ``lag``: the name of its lag; ``look``: ``look_command``; ``play``:
    ``play_command``.
    """
    status, solved = summary["status"], summary["solved_at_s"]
    head = (
        OUTCOMES[status]
        if status != "solved" or solved is None
        else f"Solved after {took(solved)}."
    )
    style = {"solved": "bold green", "completed": "bold", "failed": "bold red"}.get(
        status, "bold yellow"
    )
    lines: list[RenderableType] = [Text(head, style=style)]
    width = width_of(console.file)
    for name, value in summary_rows(
        summary, lag=lag, capsules=(directory / CAPSULES).is_dir()
    ).items():
        lines.append(Text("\n".join(wrapped(f"  {name:<12}{value}", width, " " * 14))))
    console.print(safe(Group(*lines), console), soft_wrap=True)
    if balance := _shares(summary["balance"]):
        console.print(safe(Group(*balance_lines(balance, width=width or WIDTH)), console))
    run = shlex.quote(str(directory))
    after = [f"The run is in {run}. Next:"]
    if status in ("alarmed", "interrupted", "failed"):
        can_resume = any(directory.glob("checkpoints/step_*/learner.safetensors"))
        after.append(
            f"  equipoise resume {run}"
            if can_resume
            else "  (no resume: it ended before its first checkpoint)"
        )
    if has_learned(directory):
        after += [f"  equipoise {command.format(run)}" for command in (play, look) if command]
    console.print(safe(Text("\n".join(["", *after])), console), soft_wrap=True)


def summary_rows(
    summary: Mapping[str, Any], *, lag: str = "lag", capsules: bool = True
) -> dict[str, str]:
    """The summary in the words of the live picture. ``capsules``: are there any?"""
    rows = {
        "steps": f"{summary['env_steps']:,}{_not_learned(summary)} in {clock(summary['wall_s'])}, "
        f"{_rate(summary['steps_per_s'])} steps/s, {short(summary['updates'])} updates",
    }
    # episodes without a return are imitated texts
    if summary["return_mean"] is not None or not summary["episodes"]:
        of = f"over the last {min(summary['episodes'], 100)} of {summary['episodes']:,} episodes"
        rows["return"] = f"{number(summary['return_mean'])} {of}"
    if (evaluation := summary["evaluation"]) is not None:
        rows["evaluation"] = (
            f"{spread(evaluation['mean'], evaluation['std'])} over {evaluation['episodes']} "
            "episodes"
        )
        if said := repeated(evaluation.get("info") or {}):
            rows["evaluation"] += f" ({said})"
        rows["evaluation"] += by_policy(evaluation.get("policies", {})) + at_the_ends(
            evaluation.get("info", {})
        )
    if (best := summary["best_evaluation"]) is not None and best.get("fallen", True):
        rows["best"] = (
            f"{spread(best['mean'], best['std'])} at step {best['env_steps']:,}, far above the "
            "last: --best has it"
        )
    rows |= info_rows(summary["info"])
    rows[lag] = f"{_decimal(summary['lag']['mean'])} versions, at most {summary['lag']['max']}"
    if lines := acting_lines(summary["acting"]["weights"], summary["acting"]["error"]):
        rows["acting"] = "; ".join(lines)
    if aborted := sum(one["aborted"] for one in summary["failures"].values()):
        rows["failures"] = f"{aborted:,} episodes were aborted"
        rows["failures"] += ", see capsules/ and 'equipoise reproduce'" if capsules else ""
        for text, times in summary["aborted"].items():
            rows["failures"] += f"\n{'':14}{times:,} x {printable(text)}"
    if printed := summary["printed"]:
        lines, workers = sum(printed.values()), len(printed)
        rows["printed"] = (
            f"{lines:,} line{'s' * (lines != 1)} by {workers} worker{'s' * (workers != 1)}, see "
            "logs/"
        )
    if sites := {name: SiteStats(**site) for name, site in summary["sites"].items()}:
        rows["sites"] = f"\n{'':14}".join(site_lines(sites))
    if refused := summary["refused"]:
        rows["refused"] = "by the link to other machines: " + ", ".join(
            f"{n:,} x {why}" for why, n in refused.items()
        )
    if alarms := summary["alarms"]:
        rows["alarms"] = f"\n{'':14}".join(
            f"{one['name']} ({one['owner']}) at step {one['step']:,}" for one in alarms
        )
    rows["verdict"] = summary["verdict"]
    return rows


def _not_learned(summary: Mapping[str, Any]) -> str:
    return (
        f" ({summary['taken']:,} taken)" if summary["taken"] > AHEAD * summary["env_steps"] else ""
    )


def _rate(value: float | None) -> str:
    return "—" if value is None else f"{value:,.0f}"


def _decimal(value: float | None) -> str:
    return "—" if value is None else f"{value:.1f}"


def _shares(balance: Mapping[str, Any]) -> dict[str, Shares]:
    return {
        name: row if isinstance(row, Shares) else Shares(**row) for name, row in balance.items()
    }
