"""The command line application, and the options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.console.help import plain_errors
from equipoise.console.mistakes import OneLineErrors
from equipoise.console.options import with_parameters
from equipoise.files import is_url
from equipoise.types import OUT, WHAT

app = typer.Typer(
    name="equipoise",
    cls=OneLineErrors,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # Python's own traceback is what people paste into issues
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)

Env = Annotated[
    str | None,
    typer.Argument(metavar="ENV", help="Gymnasium id, module:callable, device:NAME or a task"),
]
Algorithm = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Algorithm, or module:Class of your own (default: ppo)",
        rich_help_panel=WHAT,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="File with all settings, in place of ENV", rich_help_panel=WHAT
    ),
]
Recipe = Annotated[
    bool,
    typer.Option(
        help="Use the tuned settings for this env, if there are any", rich_help_panel=WHAT
    ),
]
HelpAll = Annotated[bool, typer.Option("--help-all", help="Show each option and each setting")]
Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        metavar="MODULE",
        help="Module that a file may run; OLD=NEW if it was renamed",
    ),
]
Callbacks = Annotated[
    list[str] | None,
    typer.Option(
        "--callback",
        metavar="MODULE:OBJECT",
        help="Callback object, or its class; repeatable",
        rich_help_panel=OUT,
    ),
]
Prometheus = Annotated[
    str | None,
    typer.Option(
        metavar="[HOST:]PORT",
        help='Port of the metrics for Prometheus (extra "prometheus")',
        rich_help_panel=OUT,
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the Python traceback of an error")]


def _version(asked: bool) -> None:
    if asked:
        from equipoise import __version__

        print(f"equipoise {__version__}")
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog="""Start here:
  equipoise train CartPole-v1 --stop-at 475
  equipoise evaluate runs/NAME-OF-THE-RUN""",
)
def equipoise(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version")
    ] = False,
) -> None:
    """Train RL agents and language models: actors make experience, and learners learn from it."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def plain_command(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with ``--debug``, without which its errors are plain (``plain_errors``)."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters.values()
        debugged = inspect.Parameter(
            "debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug
        )

        @functools.wraps(command)
        def run(debug: bool, **given: object) -> None:
            with plain_errors(name, debug):
                command(**given)

        return with_parameters(run, [*own, debugged])

    return decorate


def vouched(trust: list[str] | None) -> dict[str, Any]:
    """Return the API argument for ``--trust``."""
    return {"trust": trust} if trust else {}


def place(text: str) -> Path | str:
    """The place of a run as it was typed: a path, or a URL as it is."""
    return text if is_url(text) else Path(text)
