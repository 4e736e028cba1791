"""Mistakes on a command line: one line each, with the nearest right name."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from equipoise.console.help import Formatter, Sections, fail
from equipoise.console.typed import Context

# Typer has click inside since 0.21 and beside it before; this is the one name of it that both
# export.
UsageError: type[Any] = typer.BadParameter.__mro__[1]


class OneLineErrors(TyperGroup):
    """A group of commands whose usage errors are one line each, with exit code 2."""

    def main(self, *args: Any, **extra: Any) -> Any:
        raising = {**extra, "standalone_mode": False}
        if not extra.get("standalone_mode", True):
            return super().main(*args, **raising)
        try:
            code = super().main(*args, **raising)
        except UsageError as error:
            command = self._typed(args, extra)
            fail(f"{_reason(error)} See '{command} --help'.", command)
        except SystemExit as left:
            if (place := _place_of_others(left)) is None:
                raise
            fail(
                f"expected code that returns or raises, got an exit with {left.code!r} at {place}; "
                "raise an error there, or "
                "put what only a script does under 'if __name__ == \"__main__\":'",
                self._typed(args, extra),
                code=1,
            )
        except typer.Abort as stop:
            # click takes every EOFError for Ctrl-D at a prompt; there is none here
            if isinstance(stop.__cause__, EOFError):
                raise stop.__cause__ from None
            sys.exit(130)
        sys.exit(code if isinstance(code, int) else 0)

    def _typed(self, args: Sequence[Sequence[str]], extra: Mapping[str, Sequence[str]]) -> str:
        """The command that the arguments of ``main`` name: not every error has it."""
        typed = list(extra.get("args") or (args[0] if args and args[0] else sys.argv[1:]))
        words, known = ["equipoise"], self.commands
        while len(words) <= len(typed) and (found := known.get(typed[len(words) - 1])) is not None:
            words.append(typed[len(words) - 1])
            known = getattr(found, "commands", {})
        return " ".join(words)

    def format_commands(self, ctx: Context, formatter: Formatter) -> None:
        """Write the commands of the program by group; those of a command without groups."""
        if ctx.parent is None:
            from equipoise.console.groups import GROUPS

            width = max(len(name) for some in GROUPS.values() for name in some)
            for title, some in GROUPS.items():
                with formatter.section(title):
                    formatter.write_dl([(name.ljust(width), text) for name, text in some.items()])
            return
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, command.get_short_help_str(formatter.width))
                    for name in self.list_commands(ctx)
                    if (command := self.get_command(ctx, name)) is not None
                ]
            )

    def get_help_option(self, ctx: Context) -> Any:
        """Return the option with False as its default: to read a None, typer imports pydantic,
        which is most of the time of a --help.
        """
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False
        return option

    def format_epilog(self, ctx: Context, formatter: Formatter) -> None:
        Sections.format_epilog(self, ctx, formatter)  # type: ignore[arg-type]


def _place_of_others(left: SystemExit) -> str | None:
    """The line of a user's module or env that left the process, as a script does; None for an exit
    of this program.
    """
    ours = __name__.partition(".")[0], typer.__name__, UsageError.__module__.partition(".")[0]
    place = None
    for frame, line in traceback.walk_tb(left.__traceback__):
        root = frame.f_globals.get("__name__", "").partition(".")[0]
        if root in ours:
            place = None
        elif place is None and root != "importlib":
            place = f"{frame.f_code.co_filename}:{line}"
    return place


def _reason(error: Any) -> str:
    """The message of a usage error, with the nearest option or command if a name was unknown."""
    from equipoise.hints import hint, sentence
    from equipoise.programs.peer_names import command_of_peer

    command = error.ctx.command if error.ctx is not None else None
    message: str = error.format_message()
    if message.startswith("No such option") and command is not None:
        name = error.option_name
        return f"no such option {name!r}{_meant(name, error.ctx)}"
    if message.startswith("No such command") and isinstance(command, TyperGroup):
        name = message.split("'")[1]
        from equipoise.programs.program import algorithm_names

        if name in algorithm_names():
            return f"no such command {name!r}; it is an algorithm: 'train ENV --algorithm {name}'."
        here = command_of_peer(name)
        return (
            "no such command "
            f"{name!r}{f'; it is {here!r} here.' if here else hint(name, list(command.commands))}"
        )
    extra = (
        "unexpected extra argument" in message and command is not None and command.name == "train"
    )
    more = ""
    if extra:
        typed = error.ctx.meta.get("typed", []) if error.ctx is not None else []
        apart = next(
            (
                f"--set {key}={value}"
                for flag, key, value in zip(typed, typed[1:], typed[2:])
                if flag == "--set" and "=" not in key and value[:1] != "-"
            ),
            "",
        )
        more = f"; did you mean '{apart}'?" if apart else "; an algorithm is --algorithm NAME"
    # the metavar of an argument keeps its capitals
    first = message[:1] if message[1:2].isupper() else message[:1].lower()
    return sentence(first + message[1:].rstrip("." if more else "") + more)


def _meant(name: str, ctx: Context) -> str:
    """The end of the sentence on an unknown option: its name here, the nearest option, or "."."""
    from equipoise.console.options import listed, peer_option, setting_named
    from equipoise.console.own_options import (
        algorithms_having,
        named_algorithms,
        option_name,
        own_fields,
    )
    from equipoise.hints import nearest, sentence

    command, known = ctx.command, _options(ctx.command)
    if name == "--help-all":
        return "; it is one of 'train', and --help lists everything of this command."
    letter = [one for one in known if one[:2] == "--" and one[2:3] == name[1:].lower()]
    if len(letter) == 1:  # -v
        return f"; did you mean {letter[0]!r}?"
    if command.name not in ("train", "resume") or not name.startswith("--"):
        near = nearest(name, [one for one in known if one[:1] == "-"])
        return f"; did you mean {near!r}?" if near else "."
    typed = ctx.meta["typed"]
    values = [one for one in typed if one[:1] != "-"]
    algorithms = named_algorithms(command.name, typed, values)
    if command.name == "resume" and name in _options(ctx.parent.command.commands["train"]):
        return "; it is one of 'train', and a resume keeps it: 'train --init-from DIR' begins anew."
    if (key := setting_named(name)) is not None:
        return f"; it is a setting: --set {key}=..."
    if said := peer_option(name, algorithms):
        return f"; {said}."
    of_command = nearest(name, [one for one in known if one[:1] == "-"])
    if of_command is None and (said := _not_there(command.name, values, algorithms)):
        return f", since the fields of the algorithm are not known: {sentence(said)}"
    if there := algorithms_having(name):
        return f"; it is of {listed(there)}, and not of {listed(algorithms) or 'this run'}."
    own = [f"--{option_name(one)}" for one in own_fields(algorithms)]
    near = nearest(name, own) or of_command
    return f"; did you mean {near!r}?" if near else "."


def _not_there(command: str, values: list[str], algorithms: list[str]) -> str:
    """Why the algorithm of a command line cannot be found; "" if it can."""
    from equipoise.files import is_url
    from equipoise.programs.program import algorithm_class

    if command == "resume" and values and not is_url(values[0]):
        from equipoise.record.directory import RunDirectory

        try:
            RunDirectory.found(values[0])
        except (ValueError, OSError) as error:
            return str(error)
    for name in algorithms:
        try:
            algorithm_class(name)
        except (ValueError, ImportError) as error:
            return str(error)
    return ""


def _options(command: Any) -> list[str]:
    return [name for param in command.params for name in (*param.opts, *param.secondary_opts)]
