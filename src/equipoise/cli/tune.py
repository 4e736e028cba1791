"""``equipoise tune``: studies that search for the settings with the highest score."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from equipoise import phases
from equipoise.cli.app import Algorithm, Config, Debug, Env, HelpAll, Recipe, Trust
from equipoise.cli.cluster import Address, ClusterSettings, cluster_settings
from equipoise.cli.studies import START, Quiet, carried_on_shown, group, print_best
from equipoise.cli.train import program_of
from equipoise.console.help import Sections, leaving, plain_errors
from equipoise.console.options import (
    TuneHelp,
    field_options,
    read,
    read_fields,
    settings_options,
)
from equipoise.console.starting import Starting
from equipoise.files import plain
from equipoise.studies.settings import StudySettings
from equipoise.types import OUT, WHAT, WHERE

tune = group(
    "tune",
    "Search for the best settings, by many runs.",
    """Examples:
  equipoise tune CartPole-v1 --space optimizer.learning_rate=log:1e-4..1e-2
  equipoise tune start --help        the options of 'equipoise tune ENV'
  equipoise tune show studies/NAME
  equipoise tune resume studies/NAME""",
)

Folder = Annotated[Path, typer.Argument(metavar="STUDY", help="Study directory")]
Jobs = Annotated[
    str | None,
    typer.Option(metavar="J", help="Trials at the same time", rich_help_panel=WHERE),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON")]


@tune.command(
    START,
    cls=TuneHelp,
    epilog="""Examples:
  equipoise tune CartPole-v1 --space optimizer.learning_rate=log:1e-4..1e-2
  equipoise tune Acrobot-v1 --algorithm ppo --trials 40 --jobs 2 --strategy asha \\
    --space optimizer.learning_rate=log:1e-5..1e-2 --space algorithm.gamma=0.95,0.99,0.999
  equipoise tune Acrobot-v1 --strategy pbt --trials 8 --space algorithm.entropy=log:1e-4..1e-1
  equipoise tune strategies          the strategies and their settings""",
)
@field_options(StudySettings)
@settings_options()
@leaving()
def start(
    env: Env = None,
    algorithm: Algorithm = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Other setting of each trial; repeatable",
            rich_help_panel=WHAT,
        ),
    ] = None,
    config: Config = None,
    recipe: Recipe = True,
    help_all: HelpAll = False,
    address: Address = None,
    cluster: ClusterSettings = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="New directory (default: studies/ENV-ALGORITHM-TIME)",
            rich_help_panel=OUT,
        ),
    ] = None,
    quiet: Quiet = False,
    trust: Trust = None,
    debug: Debug = False,
    **options: str | list[str] | None,
) -> None:
    """Search for the settings of ENV with the highest score.

    Each trial is an ordinary run in the study's directory. The score is the evaluation at the end
    of each stretch of training, or the mean return without evaluations (--evaluate-episodes 0). The
    best settings are then trained again on fresh seeds. Ctrl-C saves; 'tune resume' goes on.
    """
    with Starting(quiet=quiet) as starting, ExitStack() as unless:
        with plain_errors("equipoise tune", debug):
            phases.say("importing")
            given, more = read(options)
            study = StudySettings(
                **read_fields(StudySettings, options),
                seed=int(given.get("seed") or 0),
                cluster=tuple(f"{k}={v}" for k, v in cluster_settings(address, cluster).items()),
            )
            from equipoise.studies.local import LocalExecutor, command

            started = None
            if study.executor == "local":
                started = LocalExecutor(command(study.on, trust or ()), study.jobs)
                unless.callback(started.close)
                started.prepare()
            from equipoise.api.tuning import opened

            all_settings = (*(settings or ()), *more)
            program = program_of(
                env, algorithm, config, given, all_settings, recipe=recipe, quiet=quiet, trust=trust
            )
            folder = opened(out, study, program, trust or ())
        starting.end()
        unless.pop_all()
    with plain_errors("equipoise tune", debug):
        where = cluster_settings(address, cluster)
        code = carried_on_shown(
            folder, None, trust or (), quiet=quiet, started=started, cluster=where
        )
    sys.exit(code)


@tune.command(cls=Sections)
@leaving()
def resume(
    study: Folder,
    jobs: Jobs = None,
    address: Address = None,
    cluster: ClusterSettings = None,
    quiet: Quiet = False,
    trust: Trust = None,
    debug: Debug = False,
) -> None:
    """Continue a study that was interrupted or killed."""
    with plain_errors("equipoise tune resume", debug):
        from equipoise.programs.settings import at_least
        from equipoise.studies.settings import read_study

        if suite := read_study(study).suite:
            raise ValueError(
                f"{study}: must be a study of 'tune' or 'train --seeds', got the suite {suite}; "
                f"'equipoise study' with its file goes on, and keeps the cells"
            )
        beside = None if jobs is None else at_least(jobs, "--jobs")
        where = cluster_settings(address, cluster)
        code = carried_on_shown(study, beside, trust or (), quiet=quiet, cluster=where)
    sys.exit(code)


@tune.command(cls=Sections)
def show(study: Folder, as_json: Json = False, debug: Debug = False) -> None:
    """List the trials of a study, with their scores and origins."""
    with plain_errors("equipoise tune show", debug):
        from equipoise.console.place import width_of
        from equipoise.console.study import lineage_lines, study_table
        from equipoise.studies.recorded import read_recorded

        found = read_recorded(study)
        if as_json:
            print(json.dumps(plain([asdict(one) for one in found.history])))
            return
        width = width_of(sys.stdout)
        for line in (*study_table(found, width), *lineage_lines(found, width)):
            print(line)


@tune.command(cls=Sections)
def best(study: Folder, as_json: Json = False, debug: Debug = False) -> None:
    """Print the best settings of a study and their scores.

    The score on fresh seeds is the honest one: the search had not seen these seeds.
    """
    with plain_errors("equipoise tune best", debug):
        from equipoise.studies.settings import read_study
        from equipoise.studies.tuned import found

        if suite := read_study(study).suite:
            raise ValueError(
                f"{study}: must be a search for settings, got the suite {suite}; 'equipoise study "
                "report' with its file compares its cells"
            )
        print_best(found(study), as_json=as_json)


@tune.command(cls=Sections)
def stop(study: Folder, debug: Debug = False) -> None:
    """Stop a study that trains in another process.

    The trials are saved, and 'equipoise tune resume' goes on.
    """
    with plain_errors("equipoise tune stop", debug):
        from equipoise.studies.settings import read_study
        from equipoise.studies.stopping import stop_study

        suite = read_study(study).suite
        stop_study(study)
        again = "the same command" if suite else f"'equipoise tune resume {study}'"
        print(f"stopped; {again} goes on")


@tune.command(cls=Sections)
def strategies(debug: Debug = False) -> None:
    """List the strategies and their settings."""
    with plain_errors("equipoise tune strategies", debug):
        from equipoise.studies.strategies import described

        for line in described():
            print(line)
