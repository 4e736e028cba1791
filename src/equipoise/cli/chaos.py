"""``equipoise chaos``: faults in real runs, and the proof of every row."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli.app import Debug, app
from equipoise.console.help import Sections, plain_errors
from equipoise.console.place import say

if TYPE_CHECKING:
    pass


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise chaos                                the whole matrix, in minutes
  equipoise chaos --faults kill-actor,full-disk  two of them
  equipoise chaos --list                         what there is""",
)
def chaos(
    faults: Annotated[
        str, typer.Option(metavar="A,B", help="Names of the faults (default: all)")
    ] = "",
    seconds: Annotated[
        str, typer.Option(metavar="S", help="Seconds for which a repeated fault continues")
    ] = "4",
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="File for the results")
    ] = None,
    inference: Annotated[
        str, typer.Option(metavar="local|central", help="Place of inference in the test runs")
    ] = "local",
    list_: Annotated[bool, typer.Option("--list", help="List the faults and exit")] = False,
    debug: Debug = False,
) -> None:
    """Inject faults into test runs and verify that no data is lost.

    Each fault has a run of its own. The rows of its env prove their place. The exit code is 1
    unless all runs pass.
    """
    with plain_errors("equipoise chaos", debug):
        from equipoise.programs.settings import convert

        kept_up = convert(seconds, float, "--seconds")
        from equipoise.chaos.faults import FAULTS
        from equipoise.chaos.matrix import chosen, matrix
        from equipoise.files import json_bytes, write_atomic
        from equipoise.types import Inference

        acts: Inference = convert(inference, Inference, "--inference")

        picked = chosen([name for name in faults.split(",") if name])
        if list_:
            for fault in FAULTS:
                say(f"{fault.name:<17} {fault.what}", indent=" " * 18)
            sys.exit(0)
        results = matrix(picked, kept_up, lambda line: print(line, flush=True), acts)
        passed = all(result.passed for result in results)
        if json is not None:
            write_atomic(
                json,
                json_bytes(
                    {"passed": passed, "seconds": kept_up, "inference": acts, "faults": results}
                ),
            )
    sys.exit(0 if passed else 1)
