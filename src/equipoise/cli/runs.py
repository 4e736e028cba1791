"""``equipoise runs list``, ``show`` and ``rm``: the runs of a folder."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli.app import Debug, app
from equipoise.console.help import Sections, fail, plain_errors
from equipoise.console.mistakes import OneLineErrors
from equipoise.console.typed import Context

if TYPE_CHECKING:
    from equipoise.record.listing import RunRow

PLACE = Path("runs")  # where 'train' puts them


class Runs(OneLineErrors):
    """``runs`` alone, or with a folder, is ``runs list``."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        first = args[0] if args else ""
        if first not in (*self.commands, "--help", "-h"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


runs = typer.Typer(
    name="runs",
    cls=Runs,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="List, show or remove the runs of a folder; 'runs' alone lists them.",
    epilog="""Examples:
  equipoise runs
  equipoise runs list --where env=CartPole-v1 --sort=-evaluation
  equipoise runs show runs/NAME
  equipoise runs rm --where 'evaluation<100'""",
)
app.add_typer(runs)

Place = Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder with the runs")]
Where = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Condition: KEY=VALUE, KEY<NUMBER or KEY>NUMBER; repeatable",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text")]


@runs.command("list", cls=Sections)
def list_runs(
    place: Place = PLACE,
    where: Where = None,
    sort: Annotated[
        str, typer.Option(metavar="KEY", help="Column to sort by; -KEY sorts downwards")
    ] = "changed",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the runs of a folder, with status and return.

    The keys of --where and --sort are name, env, algorithm, seed, status, steps, steps_per_s,
    return_mean, evaluation, verdict, wall_s, size, changed, and settings as --set names them.
    """
    with plain_errors("equipoise runs list", debug):
        from equipoise.files import json_bytes

        empty, found = _chosen(place, where, sort, tell=not as_json)
        if as_json:
            print(json_bytes([row.plain() for row in found]).decode(), end="")
        elif found or empty:
            _print(found)


@runs.command("show", cls=Sections)
def show_run(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a run")],
    completions: Annotated[
        bool,
        typer.Option("--completions", help="Answers of the last evaluation, with rewards"),
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show the state, the results and the settings of a run.

    --completions shows a table of answers of a run on text, with a column for each reward function.
    """
    with plain_errors("equipoise runs show", debug):
        from equipoise.console.place import printable, say
        from equipoise.facts import as_text
        from equipoise.files import json_bytes
        from equipoise.record import listing
        from equipoise.record.paths import RUN, near_runs

        if not (directory / RUN).is_file():
            got = f"one without {RUN}" if directory.is_dir() else "a file"
            got = got if directory.exists() else "nothing"
            raise ValueError(
                f"{directory}: must be the directory of a run, got {got}{near_runs(directory)}"
            )
        if completions:
            _print_completions(directory, as_json)
            return
        row = listing.row(directory)
        plain = row.plain()
        if as_json:
            print(json_bytes(plain).decode(), end="")
            return
        settings, changed = plain.pop("settings"), row.changed
        for key, value in plain.items():
            if isinstance(value, float):
                plain[key] = f"{value:.4g}"
        plain["changed"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(changed))
        named = {**plain, **(settings if isinstance(settings, dict) else {})}
        width = max(map(len, named))
        for key, value in named.items():
            say(printable(f"{key:{width}} {as_text(value)}"))


def _print_completions(directory: Path, as_json: bool) -> None:
    from equipoise.console.completions import lines
    from equipoise.console.place import say, width_of
    from equipoise.files import json_bytes
    from equipoise.record.completions import COMPLETIONS, read_completions

    if not (directory / COMPLETIONS).exists():
        raise ValueError(
            f"{directory}: must be a run on text with an evaluation, got one without {COMPLETIONS}"
        )
    found = read_completions(directory)
    if as_json:
        print(json_bytes(dict(found)).decode(), end="")
        return
    for line in lines(found, width_of(sys.stdout)):
        say(line)


@runs.command("rm", cls=Sections)
def remove_runs(
    place: Place = PLACE,
    where: Where = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without a question")] = False,
    debug: Debug = False,
) -> None:
    """Remove a run, or the runs in a folder, after a question."""
    with plain_errors("equipoise runs rm", debug):
        from equipoise.console.place import in_ci
        from equipoise.record import listing

        _, found = _chosen(place, where, "changed", tell=True)
        if not found:
            return
        _print(found)
        if busy := [row.name for row in found if row.status == "running"]:
            raise ValueError(f"must be runs that have ended, got {', '.join(busy)}, which runs")
        if not yes:
            if not sys.stdin.isatty() or in_ci():
                raise ValueError("must have --yes, since no terminal is there for the question")
            answer = input(f"Remove these {len(found)} runs for good? [y/N] ")
            if answer.strip().lower() not in ("y", "yes"):
                fail("nothing was removed", "equipoise runs rm", code=1)
        for row in found:
            listing.remove(row.path)
        print(f"removed {len(found)} runs")


def _chosen(
    place: Path, where: list[str] | None, sort: str, *, tell: bool
) -> tuple[bool, list[RunRow]]:
    """(Has the folder no runs?, its runs that fit ``where``); damaged runs are warned of."""
    from equipoise.console.place import printable, say
    from equipoise.record import listing

    if not place.is_dir() and (place.exists() or place != PLACE):
        raise ValueError(
            f"{place}: expected a folder with runs, got {'a file' if place.exists() else 'none'}"
        )
    damaged: list[str] = []
    rows = listing.rows(place, damaged=damaged) if place.exists() else []
    found = listing.chosen(rows, where or (), sort)
    if tell and rows and not found and not damaged:
        conditions = " and ".join(f"--where {one!r}" for one in where or ())
        print(f"no runs: none of {len(rows)} runs fits {conditions}")
    for sentence in damaged:
        say(f"warning: {printable(sentence)}", file=sys.stderr)
    return not rows and not damaged, found


def _print(found: list[RunRow]) -> None:
    from equipoise.console.place import width_of
    from equipoise.console.tables import runs_table
    from equipoise.console.terminal import make_console, safe

    console = make_console()
    for line in runs_table(found, width=width_of(sys.stdout)):
        console.print(safe(line, console), soft_wrap=True)
