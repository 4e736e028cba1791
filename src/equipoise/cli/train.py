"""``equipoise train``: train a policy on an env."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from equipoise.cli.app import Debug, app
from equipoise.cli.watch import watch
from equipoise.console.help import leaving, plain_errors
from equipoise.console.options import TrainHelp, read, settings_options
from equipoise.types import OUT, WHAT, WHERE

if TYPE_CHECKING:
    pass

ALGORITHMS = ", ".join(sorted(file.stem for file in Path(__file__).parents[1].glob("algorithms/[!_]*.py")))


@app.command(
    cls=TrainHelp,
    epilog="""Examples:
  equipoise train CartPole-v1                      PPO, with the tuned settings
  equipoise train CartPole-v1 --stop-at 475        until it is solved
  equipoise train Acrobot-v1 --algorithm impala --actors 2 --max-lag 1
  equipoise train CartPole-v1 --set algorithm.gamma=0.98 --set policy.unroll=64
  equipoise train my_package.envs:make_env         a function of your own
  equipoise train CartPole-v1 --on serial --debug  one thread, for a debugger""",
)
@settings_options()
@leaving()
def train(
    env: Annotated[
        str, typer.Argument(metavar="ENV", help="A Gymnasium id such as CartPole-v1, or module:id, or module:callable.")
    ],
    algorithm: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"{ALGORITHMS}, or module:Class for your own. Default ppo.", rich_help_panel=WHAT),
    ] = None,
    policies: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="NAME=ALGORITHM",
            help="One of several policies of a PettingZoo env; NAME=past:OTHER plays past versions of OTHER. Agents go to "
            "--set route.AGENT=NAME, else to main.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any setting, as often as you like: algorithm.gamma=0.98, policy.publish_every=2, env.max_episode_steps=200.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    recipe: Annotated[
        bool, typer.Option(help="Begin with the tuned settings for this env, where there are some.", rich_help_panel=WHAT)
    ] = True,
    on: Annotated[
        str,
        typer.Option(
            metavar="serial|process", help="All in one thread, or each actor in a process of its own.", rich_help_panel=WHERE
        ),
    ] = "process",
    init_from: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Begin with the weights of that run, or checkpoint.", rich_help_panel=WHAT),
    ] = None,
    init_what: Annotated[
        str,
        typer.Option(
            metavar="weights|learner",
            help="What --init-from takes: the weights alone, or the optimiser, target network, statistics and schedule, too.",
            rich_help_panel=WHAT,
        ),
    ] = "weights",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A new directory for the run. Default: runs/ENV-ALGORITHM-SEED-TIME.",
            rich_help_panel=OUT,
        ),
    ] = None,
    tensorboard: Annotated[bool, typer.Option(help="Write event files into DIR.", rich_help_panel=OUT)] = True,
    wandb: Annotated[
        str | None,
        typer.Option(
            metavar="PROJECT", help='Report to Weights & Biases as well (needs the extra "wandb").', rich_help_panel=OUT
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the summary only.", rich_help_panel=OUT)] = False,
    debug: Debug = False,
    **options: str | None,
) -> None:
    """Train a policy on ENV; watch the ring; Ctrl-C saves and stops.

    Everything the run leaves behind is in one directory, which the other commands read.
    """
    with plain_errors("equipoise train", debug):
        from equipoise.programs.settings import convert

        where: Literal["serial", "process"] = convert(on, Literal["serial", "process"], "--on")
        measured = options["inference"] == "auto"
        given, more = read(options | {"inference": None} if measured else options)
        if where == "process":
            from equipoise.runtime.process.forkserver import prepare

            prepare(central=options["inference"] in ("central", "auto"))  # its import of torch runs beside ours, which is next
        from equipoise import api, recipes
        from equipoise.console.terminal import View

        if policies:
            given["policies"] = policies
        made = api.measurable if measured else api.program
        program = made(env, algorithm, settings=(*(settings or ()), *more), recipe=recipe, **given)
        if recipe and program.placement.precision == "fp32" and (why := recipes.falls_back(env, algorithm or "ppo")):
            print(why, file=sys.stderr)
        auto: dict[str, Any] = {"inference": "auto", "tell": lambda text: print(text, file=sys.stderr)} if measured else {}
        begin: dict[str, Any] = {"init_from": init_from, "init_what": init_what}
        run = api.train(program, on=where, out=out, tensorboard=tensorboard, wandb=wandb, **begin, **auto)
        view = View(run.program, on=run.on, quiet=quiet)
    sys.exit(watch(run, view, "train"))
