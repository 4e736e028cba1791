"""``equipoise clips``: pictures of a run's policy for people who label."""

from __future__ import annotations

from typing import Annotated

import typer

from equipoise.cli.app import Trust, app, plain_command
from equipoise.console.help import Sections


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise clips runs/NAME preferences
  equipoise clips runs/NAME preferences --follow     while the run trains
  equipoise label preferences                        where people compare them""",
)
@plain_command("equipoise clips")
def clips(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Run directory, such as runs/NAME")
    ],
    store: Annotated[str, typer.Argument(metavar="STORE", help="Folder of the store")],
    count: Annotated[
        int, typer.Option("--clips", metavar="N", min=2, max=1_000, help="Clips of a checkpoint")
    ] = 20,
    rows: Annotated[
        int, typer.Option(metavar="N", min=1, max=1_000, help="Rows of a clip (reward.segment)")
    ] = 25,
    queries: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=1_000_000,
            help="Most queries that the store gets (reward.labels)",
        ),
    ] = 700,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of episodes and pairs")] = 0,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Play each newer checkpoint too, until the run ends"),
    ] = False,
    trust: Trust = None,
) -> None:
    """Add clips with pictures of a run's policy to a store, and queries about them.

    The newest checkpoint plays in an env that renders. 'equipoise label STORE' shows the clips, and
    a training with --reward preferences on this store learns from the answers.
    """
    from equipoise.api.clips import Asked, add_clips

    asked = Asked(
        clips=count,
        rows=rows,
        queries=queries,
        seed=seed,
        follow=follow,
        trust=tuple(trust or ()),
    )
    for added in add_clips(directory, store, asked):
        print(
            f"step {added.step:,}: {added.clips:,} clips, {added.queries:,} queries; "
            f"{added.total:,} queries in {store}",
            flush=True,
        )
