"""``equipoise help`` and ``equipoise version``: the texts of ``--help`` and ``--version``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from equipoise.cli.app import app
from equipoise.console.help import Sections, fail


@app.command("help", cls=Sections)
def show_help(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND | TOPIC]", help="Command, or the topic at the end of an error"
        ),
    ] = None,
) -> None:
    """Print the help of a command or of the topic of an error, or the list of all commands."""
    from equipoise.console.topics import topics

    if words and len(words) == 1 and (topic := topics().get(words[0])) is not None:
        print(topic)
        return
    command: Any = typer.main.get_command(app)
    if words and len(words) == 1 and words[0] not in command.commands:
        from equipoise.hints import nearest
        from equipoise.programs.peer_names import command_of_peer
        from equipoise.programs.program import algorithm_names

        word = words[0]
        if (
            word not in algorithm_names()
            and not command_of_peer(word)
            and nearest(word, command.commands) is None
        ):
            near = nearest(word, topics())
            fail(
                f"no such command or topic {word!r}; "
                + (f"did you mean {near!r}?" if near else f"topics: {', '.join(topics())}.")
                + " Settings are listed by 'equipoise train --help-all'.",
                "equipoise help",
            )
    for place, word in enumerate(words or ()):
        known = getattr(command, "commands", {})
        if word not in known and place:  # typer would print the help of the word before
            before = " ".join(("equipoise", *(words or ())[:place]))
            fail(f"{word!r} must be a command of {before!r}, got none such", "equipoise help")
        command = known.get(word)
    app([*(words or ()), "--help"], prog_name="equipoise")


@app.command("version", cls=Sections)
def show_version() -> None:
    """Print the version."""
    from equipoise import __version__

    print(f"equipoise {__version__}")
