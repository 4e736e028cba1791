"""``equipoise forecast``: how a run would do on machines that are only described."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.app import Debug, Trust, app, vouched
from equipoise.console.help import Sections, plain_errors


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise forecast cluster.toml --from runs/NAME
  equipoise forecast cluster.toml --from runs/NAME --curve curve.svg
  equipoise forecast docs/results/forecasts/impala.toml      from numbers alone""",
)
def forecast(
    cluster: Annotated[
        Path, typer.Argument(metavar="FILE", help="Machines, as TOML (docs/guides/balance.md)")
    ],
    run: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="DIR",
            help="Run on processes that measured the costs of the work",
        ),
    ] = None,
    curve: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Picture of steps/s by machines: .svg, .png or .pdf",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line")] = False,
    trust: Trust = None,
    debug: Debug = False,
) -> None:
    """Predict steps/s, lag, load and price of a run on other machines.

    The command simulates actors, queue and learner on the machines and links of FILE. --curve draws
    steps/s from one machine of each kind to 10,000 actors.
    """
    with plain_errors("equipoise forecast", debug):
        from equipoise.api import forecasting
        from equipoise.console.curves import save
        from equipoise.console.prediction import forecasts

        if curve is None:
            found = [forecasting.forecast(cluster, run=run, **vouched(trust))]
        else:
            found = forecasting.forecast_curve(cluster, run=run, **vouched(trust))
        for line in (json.dumps(asdict(one)) for one in found) if as_json else forecasts(found):
            print(line)
        if curve is not None:
            save(forecasting.drawn(found), curve)
