"""``equipoise check``: find out what is wrong with an env before training does."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from equipoise.cli.app import Debug, app
from equipoise.console.help import Sections, plain_errors


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise check CartPole-v1
  equipoise check my_package.envs:make_env --set env.size=8
  equipoise check ALE/Pong-v5 --steps 5k --seconds 120
  equipoise check pettingzoo:butterfly/knights_archers_zombies_v11""",
)
def check(
    env: Annotated[
        str,
        typer.Argument(metavar="ENV", help="Gymnasium id, module:id or module:callable"),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="env.KEY=VALUE", help="Argument of the env; repeatable"),
    ] = None,
    steps: Annotated[
        str | None, typer.Option(metavar="N", help="Steps of each walk (default: 1500)")
    ] = None,
    seconds: Annotated[
        str | None, typer.Option(metavar="N", help="Seconds for all walks together (default: 60)")
    ] = None,
    seed: Annotated[
        str, typer.Option(metavar="N", help="Seed of the env and of the random actions")
    ] = "0",
    debug: Debug = False,
) -> None:
    """Look for mistakes in an env before training, and for its costs.

    A child process steps the env, so an env that crashes, ends its process or hangs is a finding. A
    slow env is stepped less often, and the report lists the checks that ran out of time. Ctrl-C
    prints the findings up to then.

    ENV may also be a PettingZoo env. The exit code is 1 if training or a resume would go wrong. It
    is 0 if there are only notes, which name costs. It is 130 after Ctrl-C.
    """
    with plain_errors("equipoise check", debug):
        from equipoise.programs.settings import at_least, convert, env_of

        given = {"seed": at_least(seed, "--seed", 0)}
        if steps is not None:
            given["steps"] = convert(steps, int, "--steps")
        if seconds is not None:
            given["seconds"] = convert(seconds, float, "--seconds")
        from equipoise.console.checking import CheckLine
        from equipoise.console.findings import WIDTH, lines
        from equipoise.console.place import width_of
        from equipoise.envs.check.report import INTERRUPTED

        # not through api, which takes a second to import torch
        from equipoise.envs.check.supervise import supervise

        line = CheckLine()
        try:
            report = supervise(env_of(env, settings or ()), **given, show=line, warn=line.warn)
        finally:
            line.clear()
    print("\n".join(lines(report, width_of(sys.stdout) or WIDTH)))
    sys.exit(130 if report.why == INTERRUPTED else 0 if report.ok else 1)
