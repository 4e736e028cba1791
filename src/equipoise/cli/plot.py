"""``equipoise plot``: learning curves of runs, with the mean and the interval over seeds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.app import Debug, app
from equipoise.console.help import Sections, plain_errors
from equipoise.console.place import printable, say


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise plot runs/CartPole-v1-ppo-0-20260101-120000
  equipoise plot runs/a runs/b runs/c      seeds are a mean with an interval
  equipoise plot runs/a --x wall --out curves.svg
  equipoise plot "PPO=runs/a" "IMPALA=runs/b" --y evaluation
  equipoise plot runs --y learner/entropy""",
)
def plot(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Runs, folders with runs, or NAME=RUN",
        ),
    ],
    x: Annotated[str, typer.Option(metavar="steps|wall|updates", help="Horizontal axis")] = "steps",
    y: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Vertical axis, such as evaluation or learner/entropy",
        ),
    ] = "return",
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Picture: .svg, .png or .pdf; an old one is replaced",
        ),
    ] = Path("curves.svg"),
    debug: Debug = False,
) -> None:
    """Draw learning curves of runs (needs the extra "plot").

    Runs of one name, or that differ in the seed alone, are one curve. --y takes return, evaluation,
    length, steps_per_s, learner/METRIC or info/NAME, as TensorBoard names them.
    """
    with plain_errors("equipoise plot", debug):
        from equipoise.console.curves import curves, drawn, save

        warned: list[str] = []
        found = curves(runs, x=x, y=y, warned=warned)
        for sentence in warned:
            say(f"warning: {printable(sentence)}", file=sys.stderr)
        save(drawn(found, x=x, y=y), out)
        for curve in found:
            say(
                f"{printable(curve.name)}: {len(curve.runs)} run{'s' * (len(curve.runs) != 1)}, "
                f"{curve.said}"
            )
        print(f"wrote {out}")
