"""``equipoise generate``: a run's model answers prompts."""

from __future__ import annotations

from typing import Annotated

import typer

from equipoise.cli.app import Trust, app, plain_command, vouched
from equipoise.console.help import Sections
from equipoise.console.place import printable

Best = Annotated[
    bool,
    typer.Option("--best", help="Use the weights of the best evaluation, not the newest"),
]
Directory = Annotated[
    str, typer.Argument(metavar="DIR|URL", help="Run directory or its URL, such as runs/NAME")
]


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise generate runs/NAME --prompt "201102>"
  equipoise generate runs/NAME --prompt "201102>" --greedy
  equipoise generate runs/NAME --prompt "201102>" --samples 4 --seed 1""",
)
@plain_command("equipoise generate")
def generate(
    directory: Directory,
    prompt: Annotated[
        list[str],
        typer.Option(metavar="TEXT", help="Prompt, or JSON of messages; repeatable"),
    ],
    samples: Annotated[str, typer.Option(metavar="N", help="Completions per prompt")] = "1",
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Take the likeliest tokens instead of sampling")
    ] = False,
    limit: Annotated[
        str | None,
        typer.Option(
            "--max-tokens", metavar="N", help="Most tokens of a completion (default: the run's)"
        ),
    ] = None,
    seed: Annotated[str, typer.Option(metavar="N", help="Seed of the sampling")] = "0",
    best: Best = False,
    trust: Trust = None,
) -> None:
    """Answer prompts with the model of a run on text.

    A model that was trained on messages uses its chat template: a prompt is the user's message, or
    JSON of all messages.
    """
    from equipoise.programs.settings import at_least

    count, start = at_least(samples, "--samples"), at_least(seed, "--seed", 0)
    most = None if limit is None else at_least(limit, "--max-tokens")
    from equipoise import api

    found = api.generate(
        directory,
        prompt,
        samples=count,
        greedy=greedy,
        seed=start,
        limit=most,
        best=best,
        **vouched(trust),
    )
    for one in found:
        between = "\n" if one.chat else ""
        print(printable(f"{one.prompt}{between}{one.text}{'' if one.ended else '...'}", lines=True))
