"""``equipoise probe``: try what is said to help a run, in short runs, and compare."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from equipoise.cli.app import Debug, Trust, app, vouched
from equipoise.console.help import Sections, plain_errors
from equipoise.console.place import say


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise probe runs/NAME            the three most promising changes
  equipoise probe runs/NAME --top 1""",
)
def probe(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Run directory, such as runs/NAME")
    ],
    top: Annotated[str, typer.Option(metavar="N", help="Number of changes to try")] = "3",
    seconds: Annotated[
        str | None,
        typer.Option(
            metavar="S",
            help="Seconds of each run, even on a busy machine (default: 15)",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the results only")] = False,
    trust: Trust = None,
    debug: Debug = False,
) -> None:
    """Measure the changes that may help a run most, each in a short run.

    The command prints predictions and measurements, and leaves the run as it is. A change takes
    about 30 s, half of it for the unchanged settings, in turns.
    """
    with plain_errors("equipoise probe", debug):
        from equipoise.api.probing import probed
        from equipoise.console.prediction import probes
        from equipoise.programs.settings import convert

        tell = (lambda text: None) if quiet or as_json else say
        each = None if seconds is None else convert(seconds, float, "--seconds")
        found = probed(
            directory, top=convert(top, int, "--top"), seconds=each, tell=tell, **vouched(trust)
        )
        for line in (json.dumps(asdict(one)) for one in found) if as_json else probes(found):
            print(line)
