"""``equipoise generate``: a run's model answers prompts, or talks to the run's partner."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from equipoise.cli.app import Trust, app, plain_command, vouched
from equipoise.console.help import Sections
from equipoise.console.options import with_parameters
from equipoise.console.place import printable

if TYPE_CHECKING:
    from equipoise.api import Answer, Conversation

Best = Annotated[
    bool,
    typer.Option("--best", help="Use the weights of the best evaluation, not the newest"),
]
Directory = Annotated[
    str, typer.Argument(metavar="DIR|URL", help="Run directory or its URL, such as runs/NAME")
]


class Drawing(TypedDict):
    """Arguments of the API's functions that draw tokens."""

    samples: int
    greedy: bool
    seed: int
    limit: int | None


def drawing_of(
    samples: Annotated[
        str, typer.Option(metavar="N", help="Completions per prompt, or per row")
    ] = "1",
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
) -> Drawing:
    """The API's arguments for how tokens are drawn."""
    from equipoise.programs.settings import at_least

    return {
        "samples": at_least(samples, "--samples"),
        "greedy": greedy,
        "seed": at_least(seed, "--seed", 0),
        "limit": None if limit is None else at_least(limit, "--max-tokens"),
    }


def with_drawing(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of ``drawing_of`` before its last ones."""
    own = [
        one
        for one in inspect.signature(command, eval_str=True).parameters.values()
        if one.name != "drawing"
    ]
    options = inspect.signature(drawing_of, eval_str=True).parameters
    read: Callable[..., Drawing] = drawing_of

    @functools.wraps(command)
    def run(**given: object) -> None:
        command(drawing=read(**{name: given.pop(name) for name in options}), **given)

    return with_parameters(run, [*own[:3], *options.values(), *own[3:]])


def with_base(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the option ``--base``: the folder of the model that a run's adapters belong
    to, if that is not where it was.
    """
    own = [*inspect.signature(command, eval_str=True).parameters.values()]
    option = typer.Option(metavar="DIR", help="Folder of the model that adapters belong to")
    base = inspect.Parameter(
        "base",
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default="",
        annotation=Annotated[str, option],
    )

    @functools.wraps(command)
    def run(**given: object) -> None:
        from equipoise.api.writing import base_at

        with base_at(str(given.pop("base"))):
            command(**given)

    return with_parameters(run, [*own[:-1], base, *own[-1:]])


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise generate runs/NAME --prompt "201102>"
  equipoise generate runs/NAME --prompt "201102>" --greedy
  equipoise generate runs/NAME --prompt "201102>" --samples 4 --seed 1
  equipoise generate runs/guess --conversations 3""",
)
@plain_command("equipoise generate")
@with_base
@with_drawing
def generate(
    directory: Directory,
    prompt: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Prompt, or JSON of messages; repeatable"),
    ] = None,
    conversations: Annotated[
        str | None,
        typer.Option(metavar="N", help="Conversations with the run's partner, in place of prompts"),
    ] = None,
    best: Best = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line")] = False,
    trust: Trust = None,
    *,
    drawing: Drawing,
) -> None:
    """Answer prompts with the model of a run on text.

    A model that was trained on messages uses its chat template: a prompt is the user's message, or
    JSON of all messages. --conversations plays held-out rows of the run's task to their end.
    """
    from equipoise.programs.settings import at_least

    if (prompt is None) == (conversations is None):
        raise ValueError(
            "generate: expected one of --prompt and --conversations, got "
            + ("none" if prompt is None else "both")
        )

    from equipoise import api

    if conversations is not None:
        several = api.converse(
            directory,
            at_least(conversations, "--conversations"),
            best=best,
            **drawing,
            **vouched(trust),
        )
        for line in (_json(one) for one in several) if as_json else _transcripts(several):
            print(line)
        return
    found = api.generate(
        directory,
        prompt or [],
        best=best,
        **drawing,
        **vouched(trust),
    )
    for one in found:
        between = "\n" if one.chat else ""
        shown = f"{one.prompt}{between}{one.text}{'' if one.ended else '...'}"
        print(_json(one) if as_json else printable(shown, lines=True))


def _json(one: Answer | Conversation) -> str:
    return json.dumps(asdict(one), default=str)


def _transcripts(several: Sequence[Conversation]) -> Iterator[str]:
    """The lines of conversations: a heading with the reward, then a turn by role a line."""
    for number, one in enumerate(several, 1):
        yield f"conversation {number} of {len(several)}: {_ending(one)}"
        if isinstance(one.prompt, str):
            yield from _turn("prompt", one.prompt)
        else:
            for message in one.prompt:
                yield from _message(message)
        for message in one.messages:
            yield from _message(message)


def _ending(one: Conversation) -> str:
    if one.reward is None:
        return f"failed: {printable(one.failure or 'no reward function gave it a number')}"
    terms = [
        f"{printable(name)} {'none' if value is None else f'{value:.3g}'}"
        for name, value in one.rewards.items()
    ]
    of = f" ({', '.join(terms)})" if len(terms) > 1 else ""
    turns = f"{one.turns} {'turn' if one.turns == 1 else 'turns'}"
    return f"reward {one.reward:.3g}{of}, {turns}{'' if one.ended else ', cut at a limit'}"


def _message(message: Mapping[str, object]) -> Iterator[str]:
    calls = message.get("tool_calls")
    content = str(message.get("content") or "")
    yield from _turn(str(message["role"]), content)
    if calls:
        yield from _turn("calls", json.dumps(calls, default=str))


def _turn(role: str, text: str) -> Iterator[str]:
    """The lines of a turn: later lines are further in, so that no text looks like another role."""
    first, *more = printable(text, lines=True).split("\n")
    yield f"  {printable(role)}: {first}".rstrip()
    yield from (f"    {line}".rstrip() for line in more)
