"""``equipoise study``: benchmark suites, whose missing cells are trained, and their report."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.app import Debug, Trust
from equipoise.cli.studies import START, Quiet, group
from equipoise.console.help import Sections, leaving, plain_errors
from equipoise.console.place import say

study = group(
    "study",
    "Train a benchmark suite, and compare its scores.",
    """Examples:
  equipoise study docs/results/suites/classic.toml --jobs 2
  equipoise study report docs/results/suites/classic.toml --out classic.html""",
)

File = Annotated[Path, typer.Argument(metavar="SUITE", help="File of the suite, as TOML")]
Kept = Annotated[
    Path | None,
    typer.Option("--kept", metavar="DIR", help="Folder of finished cells (default: beside SUITE)"),
]


@study.command(START, cls=Sections)
@leaving()
def start(
    suite: File,
    kept: Kept = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory of the runs (default: studies/SUITE)"),
    ] = None,
    jobs: Annotated[str, typer.Option(metavar="J", help="Cells at the same time")] = "1",
    quiet: Quiet = False,
    trust: Trust = None,
    debug: Debug = False,
) -> None:
    """Train the cells of a suite that are missing.

    A cell is an env, an algorithm and a seed. A finished cell is kept as a small file, so cells can
    be added on another day or another machine. Ctrl-C saves; the same command goes on.
    """
    with plain_errors("equipoise study", debug):
        from equipoise.api.suites import filled, places
        from equipoise.console.study import StudyView
        from equipoise.programs.settings import at_least
        from equipoise.runtime.session import Preempted
        from equipoise.studies.settings import StudySettings

        at, beside = places(suite, out, kept), at_least(jobs, "--jobs")
        shown = StudySettings(strategy="cells", jobs=beside, suite=suite.stem)
        view = StudyView(shown, at.study, quiet=quiet)
        try:
            left = filled(
                at,
                jobs=beside,
                trust=trust or (),
                on_entry=view.on_entry,
                on_progress=view.on_progress,
                tell=lambda text: say(text, file=sys.stderr),
            )
        except KeyboardInterrupt as stopped:
            say(f"Interrupted: finished cells are in {at.kept}; the same command goes on.")
            sys.exit(143 if isinstance(stopped, Preempted) else 130)
        finally:
            view.close()
    for cell in left[:5]:
        print(f"equipoise study: {cell.name}: missing, since its run failed", file=sys.stderr)
    print(f"The finished cells are in {at.kept}. Next:")
    print(f"  equipoise study report {shlex.quote(str(suite))}")
    sys.exit(1 if left else 0)


@study.command(cls=Sections)
def report(
    suite: File,
    kept: Kept = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Page to write: .html or .md (default: SUITE.html)"),
    ] = None,
    trust: Trust = None,
    debug: Debug = False,
) -> None:
    """Write a page that compares the algorithms of a suite.

    The page has learning curves, interquartile means with bootstrap intervals, performance
    profiles, and a table against the published scores.
    """
    with plain_errors("equipoise study report", debug):
        from equipoise.api.suites import places
        from equipoise.files import write_atomic
        from equipoise.report.suite import suite_markdown, suite_page
        from equipoise.studies.kept import read_kept
        from equipoise.studies.suite import read_suite

        file = Path(f"{suite.stem}.html") if out is None else out
        if file.suffix not in (".html", ".md"):
            raise ValueError(f"--out: must end in .html or .md, got {file.name!r}")
        read, notes = read_suite(suite, trusted=trust or ()), list[str]()
        cells = read_kept(places(suite, None, kept).kept, read, notes=notes)
        for note in notes:
            say(note, file=sys.stderr)
        make = suite_page if file.suffix == ".html" else suite_markdown
        write_atomic(file, make(read, cells).encode())
        print(f"wrote {file}: {len(cells)} of {len(read.cells)} cells")
