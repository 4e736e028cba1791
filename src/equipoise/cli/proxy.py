"""``equipoise proxy``: a run that learns from the calls of agents."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from equipoise import phases
from equipoise.cli.app import Debug, Trust, app
from equipoise.cli.show import show
from equipoise.console.help import Sections, leaving, plain_errors
from equipoise.console.place import say
from equipoise.console.starting import Starting
from equipoise.types import On


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise proxy runs/NAME                 begin with a run's policy
  equipoise proxy models/qwen --at 8080     begin with a model
  equipoise proxy runs/CALLS                go on with a run of calls

Call it:
  curl http://127.0.0.1:8000/v1/chat/completions -d '{"messages": [...]}'
  curl http://127.0.0.1:8000/v1/reward -d '{"id": "chatcmpl-...", "reward": 1}'
  curl http://127.0.0.1:8000/v1/ledger""",
)
@leaving()
def proxy(
    of: Annotated[
        str,
        typer.Argument(metavar="RUN|MODEL", help="Run on text, or a model to begin with"),
    ],
    at: Annotated[
        str | None,
        typer.Option(metavar="[HOST:]PORT", help="Address to listen at (default: 8000)"),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(metavar="N", help="Conversations to learn from (default: 1M)"),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="New directory (default: runs/...)"),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Setting, such as source.turns=20; repeatable"
        ),
    ] = None,
    on: Annotated[
        str | None, typer.Option(metavar="serial|process", help="One thread, or processes")
    ] = None,
    trust: Trust = None,
    debug: Debug = False,
) -> None:
    """Answer the calls of agents with a policy, and learn from them.

    An agent calls the run as it calls OpenAI. Each of its conversations becomes samples with exact
    tokens, and its reward comes by POST /v1/reward or from a function (--set source.reward=...).
    It is 'equipoise train proxy:PORT' with the model, the algorithm and the weights of RUN; all
    settings of 'train' can be set there.
    """
    with Starting(quiet=False) as start:
        with plain_errors("equipoise proxy", debug):
            phases.say("importing")
            from equipoise import api
            from equipoise.api.proxied import answering, options_of
            from equipoise.console.terminal import View
            from equipoise.programs.settings import at_least, convert

            where: On | None = None if on is None else convert(on, On, "--on")
            try:
                run = answering(
                    of,
                    at,
                    None if steps is None else at_least(steps, "--steps"),
                    settings or (),
                    options_of(None if out is None else Path(out).expanduser(), where, trust or ()),
                    tell=lambda text: say(text, file=sys.stderr),
                )
            except api.NothingToDo as done:
                say(str(done))
                sys.exit(0)
            view = View(run.program, on=run.on, quiet=False)
        code = show(run, view, "proxy", start, None)
    sys.exit(code)
