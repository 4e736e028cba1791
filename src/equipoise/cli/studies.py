"""Studies on the command line: groups of commands, and a study shown to its end."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli.app import app
from equipoise.cli.seeds import print_seeds
from equipoise.console.mistakes import OneLineErrors
from equipoise.console.place import say
from equipoise.console.typed import Context
from equipoise.types import OUT

START = "start"
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print the result only", rich_help_panel=OUT)
]

if TYPE_CHECKING:
    from equipoise.studies.local import LocalExecutor
    from equipoise.studies.tuned import Tuned


class StudyGroup(OneLineErrors):
    """``equipoise tune ENV`` is ``equipoise tune start ENV``."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help", "-h"):
            args = [START, *args]
        return super().parse_args(ctx, args)


def group(name: str, help_: str, epilog: str) -> typer.Typer:
    """Return a new group of commands, of which ``start`` may be left out."""
    made = typer.Typer(
        name=name,
        cls=StudyGroup,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        help=help_,
        epilog=epilog,
    )
    app.add_typer(made)
    return made


def carried_on_shown(
    folder: Path,
    jobs: int | None,
    trust: Sequence[str],
    *,
    quiet: bool,
    command: str = "tune",
    cluster: Mapping[str, object] | None = None,
    started: LocalExecutor | None = None,
) -> int:
    """Carry a study on to its end, shown -> the exit code."""
    from equipoise.api.tuning import carried_on
    from equipoise.console.study import StudyView
    from equipoise.runtime.session import Preempted
    from equipoise.studies.settings import read_study

    settings = read_study(folder)
    view = StudyView(settings, folder, quiet=quiet)
    try:
        done = carried_on(
            folder,
            trust=trust,
            jobs=jobs,
            cluster=cluster,
            started=started,
            on_entry=view.on_entry,
            on_progress=view.on_progress,
        )
    except KeyboardInterrupt as stopped:
        say(f"Interrupted: the study is saved; 'equipoise tune resume {folder}' goes on.")
        return 143 if isinstance(stopped, Preempted) else 130
    finally:
        view.close()
    if settings.strategy == "seeds":
        print_seeds(folder)
    else:
        print_best(done)
    failed = [one for one in done.history if one.state == "failed"]
    for one in failed[:3]:
        print(f"equipoise {command}: {one.name}: {one.error}", file=sys.stderr)
    if (settings.strategy == "seeds" and failed) or done.best_trial is None:
        return 1
    return 0


def print_best(study: Tuned, *, as_json: bool = False) -> None:
    from equipoise.record.interval import mean_and_half

    trial, scores = study.best_trial, study.confirmed
    mean, half = mean_and_half(scores) if scores else (None, None)
    if as_json:
        data = {
            "study": str(study.directory),
            "ended": study.history.end is not None,
            "best": None if trial is None else trial.name,
            "settings": None if trial is None else trial.settings,
            "score": study.score,
            "fresh_seeds": {"scores": scores, "mean": mean, "half_of_95_percent_interval": half},
            "config": None if study.best is None else str(study.best),
        }
        print(json.dumps(data))
        return
    if study.history.end is None:
        print(f"{study.directory}: the study has not ended; 'equipoise tune show' has its trials")
        return
    if trial is None:
        print(f"{study.directory}: {study.history.end.reason}")
        return
    print(f"best      {trial.name}: {study.history.end.reason}")
    for key, value in trial.settings.items():
        print(f"          {key}={value}")
    if mean is not None:
        interval = "" if half is None else f" ± {half:.4g}"
        seeds = "one fresh seed" if len(scores) == 1 else f"{len(scores)} fresh seeds"
        print(f"fresh     {mean:.6g}{interval} over {seeds}")
    if study.best is not None:
        print(f"Next: equipoise train --config {shlex.quote(str(study.best))}")
