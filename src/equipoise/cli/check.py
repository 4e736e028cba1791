"""``equipoise check``: find out what is wrong with an env before training does."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli.app import Debug, app
from equipoise.console.help import Sections, plain_errors

if TYPE_CHECKING:
    pass


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise check CartPole-v1
  equipoise check my_package.envs:make_env --set env.size=8
  equipoise check ALE/Pong-v5 --steps 5k""",
)
def check(
    env: Annotated[str, typer.Argument(metavar="ENV", help="As for train: a Gymnasium id, or module:id, or module:callable.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="env.KEY=VALUE", help="An argument of the env, as often as you like.")
    ] = None,
    steps: Annotated[str | None, typer.Option(metavar="N", help="Steps of each of several walks. Default 1500.")] = None,
    seed: Annotated[str, typer.Option(metavar="N", help="Of the env and of the random actions.")] = "0",
    debug: Debug = False,
) -> None:
    """Find out what is wrong with ENV before training does, and what it will cost.

    It ends with 1 if training or a resume would go wrong; notes alone, things that merely cost something, end with 0.
    """
    with plain_errors("equipoise check", debug):
        from equipoise.programs.settings import convert, env_of

        given = {"seed": convert(seed, int, "--seed")}
        if steps is not None:
            given["steps"] = convert(steps, int, "--steps")
        from equipoise.console.findings import lines
        from equipoise.envs.check.check import check_env  # not through api, which takes a second to import torch

        report = check_env(env_of(env, settings or ()), **given)
    print("\n".join(lines(report)))
    sys.exit(0 if report.ok else 1)
