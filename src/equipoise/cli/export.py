"""``equipoise export``: a run's policy as an artifact that acts without torch, or its model as
other libraries load it.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal, cast, get_args

import typer

from equipoise.cli.app import Trust, app, place, plain_command, vouched
from equipoise.cli.generate import with_base
from equipoise.console.help import Sections
from equipoise.console.place import say
from equipoise.hints import shortened

Part = Literal["weights", "adapter"]


def one_of(only: str | None) -> Part | None:
    """Read ``--only``; ValueError for another word."""
    if only is not None and only not in get_args(Part):
        raise ValueError(f"--only: must be weights or adapter, got {shortened(repr(only))}")
    return cast("Part | None", only)


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise export runs/NAME policy
  python policy/edge.py policy < observations.jsonl
                                an action a line, on numpy and onnxruntime alone
  equipoise export runs/NAME policy --recorded rows.npz      with no env at hand
  equipoise train sort --algorithm rloo --model model        of a run on text
  equipoise export runs/NAME adapter --only adapter    its adapters, for peft""",
)
@plain_command("equipoise export")
@with_base
def export(
    directory: Annotated[
        str,
        typer.Argument(metavar="DIR|URL", help="Run directory or its URL, such as runs/NAME"),
    ],
    to: Annotated[Path, typer.Argument(metavar="OUT", help="New directory")],
    policy: Annotated[
        str | None, typer.Option(metavar="NAME", help="Policy to export, if the run has several")
    ] = None,
    best: Annotated[
        bool,
        typer.Option("--best", help="Use the weights of the best evaluation, not the newest"),
    ] = False,
    recorded: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|ID",
            help="Recorded observations for the check: npz or Minari id",
        ),
    ] = None,
    rows: Annotated[
        str | None, typer.Option(metavar="N", help="Observations in the check (default: 10000)")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="weights|adapter",
            help="Write weights without a graph, or adapters alone",
        ),
    ] = None,
    trust: Trust = None,
) -> None:
    """Write a policy that acts without torch: policy.onnx, weights, spec, edge.py and hashes.

    The graph is compared with torch, on observations of the run's env or on --recorded ones, and
    refused if it differs. For a run on text, write a model that transformers loads.
    """
    from equipoise import api
    from equipoise.programs.settings import at_least

    count = None if rows is None else at_least(rows, "--rows")
    found = api.export(
        place(directory),
        to,
        policy=policy,
        best=best,
        recorded=recorded,
        rows=count,
        only=one_of(only),
        **vouched(trust),
    )
    if not found.version:
        print(found.path)
        return
    say(f"{shlex.quote(str(found.path))}  version {found.version[:12]}")
    if found.note:
        print(f"  observations were made up, since there is no env to play: {found.note}")
    if (one := found.parity) is not None:
        print(
            f"  the graph gives torch's answers on {one.rows:,} rows of {found.source}: "
            f"{one.equal:.2%} of actions equal, "
            f"log propensities within {one.logp:.1g}"
        )
        if found.precision != "fp32":
            print(
                f"  compared with torch in fp32; the run acts in {found.precision}, which rounds "
                "more than the graph"
            )
