"""``equipoise trace``: the last seconds of a run's workers, as a picture for Perfetto."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.app import Debug, app
from equipoise.console.help import Sections, plain_errors


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise train CartPole-v1 --set placement.trace_s=10 --out runs/traced
  equipoise trace runs/traced                 while it runs, or afterwards
  equipoise trace runs/traced --seconds 0.5 --out half.json""",
)
def trace(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Run directory, such as runs/NAME")
    ],
    seconds: Annotated[
        str, typer.Option(metavar="N", help="Seconds to write, up to the last one")
    ] = "10",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="File for the trace (default: trace.json in DIR)"),
    ] = None,
    debug: Debug = False,
) -> None:
    """Write the last seconds of each worker as a trace for ui.perfetto.dev or chrome://tracing.

    A run keeps them if it is started or resumed with --set placement.trace_s=N.
    """
    with plain_errors("equipoise trace", debug):
        from equipoise.files import write_atomic
        from equipoise.programs.settings import convert
        from equipoise.tracing import FOLDER, chrome, read

        last = convert(seconds, float, "--seconds")
        if not 0 < last < float("inf"):
            raise ValueError(f"--seconds: expected more than 0, got {seconds}")
        if not (directory / "run.json").is_file():
            got = "one without run.json" if directory.is_dir() else "none"
            raise ValueError(f"{directory}: expected a run directory, got {got}")
        made = chrome(read(directory / FOLDER), last)
        if not any(event["ph"] == "X" for event in made["traceEvents"]):
            raise ValueError(
                f"{directory}: expected a run with --set placement.trace_s=10 or so, got one that "
                "keeps no trace; "
                f"'equipoise resume {directory} --set placement.trace_s=10' goes on with one"
            )
        file = directory / "trace.json" if out is None else out
        if out is not None and out.exists() and not _is_trace(out):
            raise ValueError(
                f"--out {out}: expected a new file or an earlier trace, got another, which stays"
            )
        write_atomic(file, json.dumps(made, separators=(",", ":")).encode())
        print(f"wrote {file}; https://ui.perfetto.dev shows it (it stays in the browser)")


def _is_trace(file: Path) -> bool:
    begin = b'{"traceEvents":'
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return opened.read(len(begin)) == begin
