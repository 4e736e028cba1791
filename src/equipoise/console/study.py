"""A study as text: a table of its trials, a line for each entry of its journal, and the view of a
study that trains.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live
from rich.text import Text

from equipoise.console.columns import FIRST, columns, total
from equipoise.console.picture import clock
from equipoise.console.place import joined, printable, size_of, width_of, wrapped
from equipoise.console.terminal import make_console, safe
from equipoise.record.described import differing
from equipoise.record.ring import count, short
from equipoise.studies.best import best
from equipoise.studies.executor import Progress
from equipoise.studies.history import Clone, End, Entry, GoOn, History, Result, Start, Trial
from equipoise.studies.recorded import (
    RecordedStudy,
    changed,
    changes_text,
    ranked,
    state_text,
    value_text,
)
from equipoise.studies.settings import StudySettings
from equipoise.studies.space import Value

MOST_TRIALS = 20  # lines of a table
MOST_CUTS = 20  # clones of a lineage
MOST_SETTINGS = 4  # columns
LONGEST = 24  # letters of a cell
REDRAW_S = 0.25
SPARE = ("steps", "state")  # columns that are left out after the time and the settings
STATES = ("training", "interrupted", "paused", "completed", "done", "stopped", "failed")


def study_table(study: RecordedStudy, width: int | None) -> list[str]:
    """Return a head and a line for each of the best ``MOST_TRIALS`` trials, of at most ``width``
    columns.
    """
    at_work, suite = study.state == "training", bool(study.settings.suite)
    return _table(study.title, study.history, width, at_work=at_work, suite=suite)


def lineage_lines(study: RecordedStudy, width: int | None) -> list[str]:
    """Return the chain of clones behind each living member that is one, the best first."""
    lines = list[str]()
    clones = [one for one in study.members if one.parent is not None]
    for member in clones[:MOST_TRIALS]:
        first, *rest = study.ancestors(member.name)
        lines += wrapped(printable(f"{member.name} {score_text(member.score)}"), width, "  ")
        lines += wrapped(printable(f"  begins as {first.trial}"), width, "    ")
        if (earlier := len(rest) - MOST_CUTS) > 0:
            lines.append(f"  and was cloned {earlier:,} times before")
        for one in rest[-MOST_CUTS:]:
            lines += wrapped(printable(f"  {one}"), width, "    ")
    return lines


def entry_text(entry: Entry, history: History) -> str:
    """Return an entry of a journal as a sentence, with the reason of a decision."""
    if isinstance(entry, End):
        text = "the study ends" + (f", its best trial is {entry.best}" if entry.best else "")
    elif isinstance(entry, Result):
        return _result_text(entry)
    elif isinstance(entry, Start):
        text = f"{entry.trial} starts"
        text += f" as {entry.role} run of seed {entry.seed}" if entry.role != "search" else ""
        text += f": {_settings_text(entry.settings)}" if entry.settings else ""
        text += f"; to {entry.to:,} steps"
    elif isinstance(entry, Clone):
        clone = history.trials[entry.trial]
        changes = changes_text(changed(clone, history.trials[entry.source])) or "unchanged"
        text = f"{entry.trial} is a clone of {entry.source} at step {clone.parent_steps:,}: "
        text += f"{changes}; to {entry.to:,} steps"
    elif isinstance(entry, GoOn):
        text = f"{entry.trial} goes on to {entry.to:,} steps"
    else:
        text = f"{entry.trial} stops"
    return f"{text} ({entry.reason})" if entry.reason else text


def score_text(value: float | None) -> str:
    """Return a score with four digits, or as a whole number from 1,000 on."""
    if value is None:
        return "—"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


class StudyView:
    """The view of a study that trains: a table redrawn in place on a terminal, else a line for each
    entry. ``quiet``: only failures are printed.
    """

    def __init__(
        self,
        settings: StudySettings,
        folder: Path,
        quiet: bool = False,
        console: Console | None = None,
    ) -> None:
        self.console = make_console() if console is None else console
        self._suite, self._quiet = bool(settings.suite), quiet
        self._title = f"{'suite' if self._suite else f'{settings.strategy} study'} in {folder}"
        self._history = History()
        self._reached: dict[str, int] = {}  # env steps of trials that train
        self._last = ""  # decision
        self._updated = 0.0
        self._live: Live | None = None
        if not quiet and self.console.is_interactive:
            self._live = Live(
                console=self.console,
                refresh_per_second=1 / REDRAW_S,
                vertical_overflow="crop",
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def on_entry(self, entry: Entry, history: History) -> None:
        """Take in an entry of the journal, after the history has it."""
        self._history = history
        failed = isinstance(entry, Result) and entry.state == "failed"
        if isinstance(entry, Result):
            self._reached.pop(entry.trial, None)
        if failed or (self._live is None and not self._quiet):
            self._print(entry_text(entry, history))
        elif not isinstance(entry, Result):
            self._last = printable(entry_text(entry, history))
        self._update()

    def on_progress(self, progress: Progress) -> None:
        """Take in how far a trial is."""
        self._reached[progress.trial] = progress.steps
        if time.monotonic() - self._updated >= REDRAW_S:
            self._update()

    def close(self) -> None:
        """Leave the last table on the terminal."""
        if self._live is not None:
            self._update()
            self._live.stop()
            self._live = None

    def _update(self) -> None:
        """Lay the table out; the next refresh draws it."""
        if self._live is None:
            return
        self._updated = time.monotonic()
        # rich asks the descriptors 0 to 2, which may go elsewhere
        if (size := size_of(self.console.file)) is not None:
            self.console.size = ConsoleDimensions(*size)
        width, height = self.console.size
        most = max(min(MOST_TRIALS, height - 8), 1)
        lines = _table(
            self._title,
            self._history,
            width,
            at_work=True,
            suite=self._suite,
            reached=self._reached,
            most=most,
        )
        first, *rest = [*lines, *(_fitting(one, width) for one in [self._last] if one)]
        drawn = [Text(first, "bold", no_wrap=True), *(Text(one, no_wrap=True) for one in rest)]
        self._live.update(safe(Group(*drawn), self.console))

    def _print(self, text: str) -> None:
        lines = wrapped(printable(text), width_of(self.console.file), "  ")
        self.console.print(safe(Text("\n".join(lines)), self.console), soft_wrap=True)


def _table(
    title: str,
    history: History,
    width: int | None,
    *,
    at_work: bool,
    suite: bool,
    reached: Mapping[str, int] | None = None,
    most: int = MOST_TRIALS,
) -> list[str]:
    """The lines of a table. ``reached``: env steps of trials since their last result."""
    trials, far = ranked(history, by_env=suite), reached or {}
    parts = _head(title, history, None if suite else best(history), far, at_work=at_work)
    lines = [_fitting(one, width) for one in joined(parts, width, "  ")]
    if not trials:
        return [*lines, "no trial has begun"]
    shown = _shown(trials, most)
    there = {one.name for one in shown}
    rest = [one for one in trials if one.name not in there]
    keys = differing([one.settings for one in shown])[:MOST_SETTINGS]
    names = _short_names(keys)
    head = ["trial", "state", "steps", "score", "time", *names]
    body = [
        [
            one.name,
            state_text(one, history, at_work=at_work),
            short(max(one.steps, far.get(one.name, 0))),
            score_text(one.score),
            clock(one.seconds),
            *(_cell(value_text(one.settings.get(key))) for key in keys),
        ]
        for one in shown
    ]
    spare = ["time", *reversed(names), *SPARE]
    while width is not None and spare and _least(head, body) > width:
        place = head.index(spare.pop(0))
        head, body = _without(head, place), [_without(row, place) for row in body]
    drawn = columns(head, body, left=1 + ("state" in head), width=width)
    if any(one.parent is not None for one in shown):
        wide = max(map(len, drawn))
        parents = ["from", *(_origin(one, history) for one in shown)]
        drawn = [f"{line:{wide}}  {text}".rstrip() for line, text in zip(drawn, parents)]
    lines += [_fitting(one, width) for one in drawn]
    if rest:
        counts = Counter(state_text(one, history, at_work=at_work) for one in rest)
        said = ", ".join(f"{number} {state}" for state, number in counts.items())
        lines += wrapped(f"and {count(len(rest), 'more trial')}: {said}", width, "  ")
    return lines


def _shown(trials: list[Trial], most: int) -> list[Trial]:
    """The first ``most`` trials, of which some make room for trials that train."""
    training = [one for one in trials[most:] if one.state == "training"][: most // 2]
    return [*trials[: most - len(training)], *training]


def _head(
    title: str, history: History, winner: Trial | None, reached: Mapping[str, int], *, at_work: bool
) -> list[str]:
    """The counts of trials, the best score and the env steps, in parts."""
    counts = Counter(state_text(one, history, at_work=at_work).partition(",")[0] for one in history)
    states = ", ".join(f"{counts[one]} {one}" for one in STATES if counts[one])
    parts = [
        printable(title),
        f"{count(len(history.trials), 'trial')}" + f": {states}" * bool(states),
    ]
    if winner is not None:
        parts.append(
            printable(f"best {score_text(winner.score)} by {winner.name} at {short(winner.steps)}")
        )
    steps = sum(max(one.steps, reached.get(one.name, 0)) - one.parent_steps for one in history)
    return [*parts, f"{short(steps)} steps used"]


def _origin(trial: Trial, history: History) -> str:
    if trial.parent is None:
        return ""
    changes = changed(trial, history.trials[trial.parent])
    last = changes_text({key.rpartition(".")[2]: pair for key, pair in changes.items()})
    return printable(f"{trial.parent} at {short(trial.parent_steps)}: {last or 'unchanged'}")


def _result_text(result: Result) -> str:
    if result.state == "failed":
        return f"{result.trial} failed at step {result.steps:,}: {result.error}"
    alarms = f", alarms: {', '.join(result.alarms)}" if result.alarms else ""
    return (
        f"{result.trial} has the score {score_text(result.score)} at step {result.steps:,}, after "
        f"{clock(result.seconds)}{alarms}"
    )


def _settings_text(settings: Mapping[str, Value]) -> str:
    return ", ".join(f"{key} {value_text(value)}" for key, value in settings.items())


def _short_names(keys: list[str]) -> list[str]:
    """The last part of each key, or all of it if two would be alike."""
    last = [key.rpartition(".")[2] for key in keys]
    taken = ("trial", "state", "steps", "score", "time")
    return [key if last.count(name) > 1 or name in taken else name for key, name in zip(keys, last)]


def _least(head: list[str], body: list[list[str]]) -> int:
    """The columns that a table takes at least: the first one may be cut."""
    widths = [max(len(printable(row[i])) for row in (head, *body)) for i in range(len(head))]
    return total([min(widths[0], FIRST), *widths[1:]])


def _without(row: list[str], place: int) -> list[str]:
    return row[:place] + row[place + 1 :]


def _cell(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _fitting(line: str, width: int | None) -> str:
    """A line cut to ``width`` columns; some letters take two."""
    if width is None or cell_len(line) <= width:
        return line
    return f"{set_cell_size(line, width - 1).rstrip()}…"
