"""``equipoise resume``: go on with a run from its newest checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, cast

import typer

from equipoise import phases
from equipoise.cli.app import Callbacks, Debug, Prometheus, Trust, app, place
from equipoise.cli.cluster import Address, ClusterSettings, cluster_settings
from equipoise.cli.show import show
from equipoise.console.help import leaving, plain_errors
from equipoise.console.options import OwnOptions, read, settings_options
from equipoise.console.place import say
from equipoise.console.starting import Starting
from equipoise.files import is_url
from equipoise.types import On


@app.command(
    cls=OwnOptions,
    epilog="""Examples:
  equipoise resume runs/NAME             from its newest checkpoint, to its end
  equipoise resume runs/NAME --steps 2M  further than it was to go
  equipoise resume runs/NAME --on serial --debug""",
)
@settings_options(resume=True, change="Setting to change, such as algorithm.entropy=0")
@leaving()
def resume(
    directory: Annotated[
        str,
        typer.Argument(metavar="DIR|URL", help="Run directory or its URL, such as runs/NAME"),
    ],
    on: Annotated[
        str | None,
        typer.Option(metavar="serial|process|ray", help="Runtime (default: the run's last one)"),
    ] = None,
    address: Address = None,
    cluster: ClusterSettings = None,
    callbacks: Callbacks = None,
    prometheus: Prometheus = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the summary only")] = False,
    trust: Trust = None,
    debug: Debug = False,
    **options: str | list[str] | None,
) -> None:
    """Continue a run from its newest checkpoint, whether it was interrupted, killed or has ended.

    The schedules keep the length that the run began with. Changes are listed; a setting that cannot
    change is refused.
    """
    with Starting(quiet=quiet) as start:
        with plain_errors("equipoise resume", debug):
            phases.say("importing")
            from equipoise.programs.settings import convert

            where: On | None = None if on is None else convert(on, On, "--on")
            of_cluster = cluster_settings(address, cluster)
            given, settings = read(options)
            from equipoise import api
            from equipoise.api.options import ResumeOptions
            from equipoise.api.training import made_callbacks, resumed
            from equipoise.console.terminal import View
            from equipoise.record.prometheus import Endpoint, read_address
            from equipoise.record.summary import read_summary

            before = None if is_url(directory) else read_summary(Path(directory))
            told = [] if before is None else before.get("notes", [])
            endpoint = None if prometheus is None else Endpoint(read_address(prometheus))
            try:
                run = resumed(
                    place(directory),
                    cast(
                        ResumeOptions,
                        {
                            "on": where,
                            "cluster": of_cluster,
                            "settings": settings,
                            "callbacks": made_callbacks(callbacks or ()),
                            "trust": trust or (),
                            **given,
                        },
                    ),
                    tell=lambda text: say(text, file=sys.stderr),
                )
            except api.NothingToDo as done:
                say(str(done))
                sys.exit(0)
            for key, (was, now) in run.changes.items():
                say(f"changed: {key} {was!r} -> {now!r}")
            view = View(run.program, on=run.on, quiet=quiet, told=told)
        code = show(run, view, "resume", start, endpoint)
    sys.exit(code)
