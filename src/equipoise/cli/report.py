"""``equipoise report``: runs as one HTML page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.app import Debug, app
from equipoise.console.help import Sections, plain_errors


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise report runs/CartPole-v1-ppo-0-20260101-120000
  equipoise report runs/five               all runs of a folder
  equipoise report runs/search             a study
  equipoise report runs/a runs/b --out ab.html""",
)
def report(
    places: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Runs, folders with runs, or a study")
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="HTML file; an earlier report is replaced",
        ),
    ] = Path("report.html"),
    debug: Debug = False,
) -> None:
    """Write an HTML page about runs or a study: curves with intervals, bottlenecks, settings."""
    with plain_errors("equipoise report", debug):
        from equipoise.console.place import printable, say
        from equipoise.report.page import check_out, page, write
        from equipoise.report.runs import read
        from equipoise.studies.settings import STUDY

        check_out(out)
        if len(places) == 1 and (places[0] / STUDY).is_file():
            _study(places[0], out)
            return
        runs, warned = read(places)
        for sentence in warned:
            say(f"warning: {printable(sentence)}", file=sys.stderr)
        write(out, page(runs))
        print(
            f"wrote {out}: {len(runs)} run{'s' * (len(runs) != 1)}, "
            f"{out.stat().st_size / 1000:,.0f} kB"
        )


def _study(place: Path, out: Path) -> None:
    from equipoise.report.page import write
    from equipoise.report.study import study_page
    from equipoise.studies.recorded import read_recorded

    study = read_recorded(place)
    write(out, study_page(study))
    trials = len(study.history.trials)
    print(f"wrote {out}: {trials} trial{'s' * (trials != 1)}, {out.stat().st_size / 1000:,.0f} kB")
