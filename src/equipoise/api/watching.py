"""A run to its end with the live view, in a terminal or in a cell of a notebook: ``watch``."""

from __future__ import annotations

from equipoise.run.run import Run

__all__ = ["watch"]


def watch(run: Run) -> dict[str, object]:
    """Train to the end with the live view -> the summary of the run.

    In a notebook the view is one picture in the cell's output. Ctrl-C, or the notebook's stop
    button, saves the run and returns as well: ``summary["status"]`` is then "interrupted", and
    ``resume`` goes on with it. What a worker raises is raised.
    """
    from equipoise.console.notebook import NotebookView, in_notebook
    from equipoise.console.terminal import View

    view = NotebookView(run.program, on=run.on) if in_notebook() else View(run.program, on=run.on)
    try:
        with run, view:
            for report in run:
                view.update(report)
    except KeyboardInterrupt:
        if run.summary is None:  # nothing had begun
            raise
    assert run.summary is not None
    view.summarise(run.summary, run.directory)
    return run.summary
