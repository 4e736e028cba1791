"""The view of a run in a notebook: one picture in the cell's output, redrawn in place."""

from __future__ import annotations

import importlib
import io
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console, RenderableType

from equipoise.console.pages import view
from equipoise.console.picture import History
from equipoise.console.terminal import look_command, play_command, print_summary
from equipoise.record.report import Report
from equipoise.record.series import lag_name
from equipoise.types import Program

REDRAW_S = 0.5
WIDTH = 100
FORMAT = '<pre style="line-height:1.2;font-family:monospace">{code}</pre>'


class NotebookView:
    """As the terminal's ``View``: a context manager around a run, ``update`` with each report,
    ``summarise`` after the end.
    """

    def __init__(self, program: Program, *, on: str) -> None:
        self._program, self._on, self._history = program, on, History()
        self._handle: Any = None
        self._next_draw, self._notes = 0.0, list[str]()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def update(self, report: Report) -> None:
        self._history.add(report)
        self._notes += report.notes
        now = time.monotonic()
        if now >= self._next_draw or report.final:
            self._next_draw = now + REDRAW_S
            self._show(
                *self._notes, view(report, self._program, self._history, on=self._on, width=WIDTH)
            )

    def summarise(self, summary: Mapping[str, object], directory: Path) -> None:
        """Draw the result in place of the picture."""
        console = _console()
        look, play = look_command(self._program, directory), play_command(self._program)
        print_summary(
            console, summary, directory, lag=lag_name(self._program), look=look, play=play
        )
        self._draw(_html(console))

    def _show(self, *parts: RenderableType) -> None:
        console = _console()
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, str), markup=False)
        self._draw(_html(console))

    def _draw(self, html: str) -> None:
        shown: Any = importlib.import_module("IPython.display")
        if self._handle is None:
            self._handle = shown.display(shown.HTML(html), display_id=True)
        else:
            self._handle.update(shown.HTML(html))


def _console() -> Console:
    return Console(
        file=io.StringIO(),
        record=True,
        width=WIDTH,
        highlight=False,
        force_jupyter=False,
        force_terminal=True,
    )


def _html(console: Console) -> str:
    return console.export_html(inline_styles=True, code_format=FORMAT)
