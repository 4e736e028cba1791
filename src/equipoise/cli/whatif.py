"""``equipoise whatif``: how fast a run would be with other settings, from what its workers
measured.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from equipoise.cli.app import Debug, Trust, app, vouched
from equipoise.console.help import Sections, plain_errors
from equipoise.console.options import read, settings_options

PREDICTED = (
    "placement.actors",
    "placement.envs_per_actor",
    "placement.max_lag",
    "placement.learners",
    "policy.unroll",
    "policy.batch",
)  # options of train; the others have --set keys


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise whatif runs/NAME               what would help, and by how much
  equipoise whatif runs/NAME --actors 4 --batch 64
  equipoise whatif runs/NAME --set algorithm.epochs=2 --json""",
)
@settings_options(
    only=PREDICTED,
    change="Setting to change, such as algorithm.epochs=2",
)
def whatif(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Run directory, such as runs/NAME")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object")] = False,
    trust: Trust = None,
    debug: Debug = False,
    **options: str | list[str] | None,
) -> None:
    """Predict steps/s, lag and shares of time of a run with other settings, without running it.

    The prediction uses the costs that this run measured, and how the queue, the lag and the cores
    hold workers back. An option that you leave out keeps the run's value.
    """
    with plain_errors("equipoise whatif", debug):
        given, settings = read(options)
        from equipoise.api.predicting import whatif as predict
        from equipoise.console.prediction import lines

        found = predict(directory, settings=settings, **vouched(trust), **given)
        if as_json:
            print(json.dumps(asdict(found)))
            return
        for line in lines(found):
            print(line)
