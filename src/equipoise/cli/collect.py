"""``equipoise collect``: save episodes of a run's policy as a data set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli.app import Debug, Trust, app, vouched
from equipoise.console.help import Sections, plain_errors

if TYPE_CHECKING:
    pass


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise collect runs/NAME --dataset cartpole/expert-v0
  equipoise collect runs/NAME --dataset data/expert --deterministic
  equipoise train CartPole-v1 --algorithm bc --dataset cartpole/expert-v0""",
)
def collect(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Run directory, such as runs/NAME")
    ],
    dataset: Annotated[
        str,
        typer.Option(
            metavar="ID|DIR",
            help="Minari id or new directory of the data set",
        ),
    ],
    episodes: Annotated[str, typer.Option(metavar="N", help="Episodes to play")] = "100",
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic",
            help="Take the most likely actions instead of sampling",
        ),
    ] = False,
    seed: Annotated[str, typer.Option(metavar="N", help="Seed of the episodes")] = "0",
    best: Annotated[
        bool,
        typer.Option("--best", help="Use the weights of the best evaluation, not the newest"),
    ] = False,
    trust: Trust = None,
    debug: Debug = False,
) -> None:
    """Save episodes of a run's policy as a Minari data set for 'train --dataset'."""
    with plain_errors("equipoise collect", debug):
        from equipoise.programs.settings import at_least, convert

        count, start = convert(episodes, int, "--episodes"), at_least(seed, "--seed", 0)
        from equipoise import api

        made = api.collect(
            directory,
            dataset,
            episodes=count,
            deterministic=deterministic,
            seed=start,
            best=best,
            **vouched(trust),
        )
        returns = [float(one.reward.sum()) for one in made]
    print(
        f"{made.episodes:,} episodes, {made.steps:,} steps, return "
        f"{sum(returns) / len(returns):,.1f}"
    )
    print(made.place)
