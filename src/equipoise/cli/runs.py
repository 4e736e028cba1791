"""``equipoise runs``: the runs of a folder, as a table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.app import Debug, app
from equipoise.console.help import Sections, fail, plain_errors

PLACE = Path("runs")  # where 'train' puts them


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise runs
  equipoise runs --where env=CartPole-v1 --sort=-evaluation
  equipoise runs --where optimizer.learning_rate=1e-3
  equipoise runs --where status=running --json
  equipoise runs --where 'evaluation<100' --remove""",
)
def runs(
    place: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="The folder with the runs.")
    ] = PLACE,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Only the runs of which this is true; also KEY>NUMBER and KEY<NUMBER. Keys: name, "
            "env, algorithm, seed, "
            "status, steps, steps_per_s, return_mean, evaluation, verdict, wall_s, size, changed, "
            "and settings as --set "
            "names them.",
        ),
    ] = None,
    sort: Annotated[
        str, typer.Option(metavar="KEY", help="The column to sort by; -KEY sorts downwards.")
    ] = "changed",
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print a JSON list, an object for each run: the keys of --where, and its "
            "settings.",
        ),
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the runs that are listed, after a question.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --remove: do not ask.")] = False,
    debug: Debug = False,
) -> None:
    """List the runs of a folder: what they train, how far they are, what they reached, what holds
    them back; or remove them.
    """
    with plain_errors("equipoise runs", debug):
        from equipoise.console.place import in_ci, printable, say, width_of
        from equipoise.console.tables import runs_table
        from equipoise.console.terminal import make_console, safe
        from equipoise.files import json_bytes
        from equipoise.record import listing

        if as_json and remove:
            raise ValueError("--json: expected it without --remove, which asks and tells in words")
        if not place.is_dir() and (place.exists() or place != PLACE):
            raise ValueError(
                f"{place}: expected a folder with runs, got "
                f"{'a file' if place.exists() else 'none'}"
            )
        damaged: list[str] = []
        rows = listing.rows(place, damaged=damaged) if place.exists() else []
        found = listing.chosen(rows, where or (), sort)
        if as_json:
            print(json_bytes([row.plain() for row in found]).decode(), end="")
        elif rows and not found and not damaged:
            print(
                f"no runs: none of {len(rows)} runs fits "
                f"{' and '.join(f'--where {one!r}' for one in where or ())}"
            )
        elif found or not damaged:
            console = make_console()
            for line in runs_table(found, width=width_of(sys.stdout)):
                console.print(safe(line, console), soft_wrap=True)
        for sentence in damaged:
            say(f"warning: {printable(sentence)}", file=sys.stderr)
        if not remove or not found:
            return
        if busy := [row.name for row in found if row.status == "running"]:
            raise ValueError(
                f"--remove: expected runs that have ended, got {', '.join(busy)}, which is running"
            )
        if not yes:
            if not sys.stdin.isatty() or in_ci():
                raise ValueError("--remove: expected --yes, since there is nobody to ask")
            answer = input(f"Remove these {len(found)} runs for good? [y/N] ")
            if answer.strip().lower() not in ("y", "yes"):
                fail("nothing was removed", "equipoise runs", code=1)
        for row in found:
            listing.remove(row.path)
        print(f"removed {len(found)} runs")
