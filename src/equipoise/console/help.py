"""How the command line explains itself: help in sections, errors and warnings in a line each.

Plain text, since typer's own rich panels cost 0.2 s of imports, which is most of what ``--help``
may take.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeAlias

from typer.core import TyperCommand

from equipoise.console.place import printable, width_of, wrapped
from equipoise.console.typed import Context, check_typed

Formatter: TypeAlias = Context  # another one

# around a required argument, around one that may be left out, and around several
BRACES = re.compile(r"^(?:\{(.*)\}|\[(\[.*\])\])(\.\.\.)?$")
TYPE = re.compile(r" <[^>]*>$")  # a type of Python behind the name of an argument
EXTRA = re.compile(r"(?:^|\s+)\[([^\[\]]*)\]$")  # what typer adds to a help: [default: 3; x>=0]


class Sections(TyperCommand):
    """A command whose options are listed under their ``rich_help_panel``, in the order of their
    declaration, without those that ``ctx.meta["hidden"]`` names.
    """

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        if not {"--help", "-h"} & set(args):
            check_typed(ctx, args, self.key_of)
        return super().parse_args(ctx, args)

    key_of: Callable[[str], str] | None = None  # the setting of an option, if each is given once

    def format_options(self, ctx: Context, formatter: Formatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and param.name not in ctx.meta.get("hidden", ()):
                record = TYPE.sub("", record[0]), with_default(record[1])
                title = (
                    "Arguments"
                    if param.param_type_name == "argument"
                    else getattr(param, "rich_help_panel", None)
                )
                sections.setdefault(title or "Options", []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=28)

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        """The arguments without the braces of typer, which are not typed."""
        pieces = [TYPE.sub("", piece) for piece in super().collect_usage_pieces(ctx)]
        return [
            (found[1] or found[2]).removesuffix("...") + (found[3] or "")
            if (found := BRACES.match(piece))
            else piece
            for piece in pieces
        ]

    def format_epilog(self, ctx: object, formatter: Formatter) -> None:
        """Write the epilog unwrapped: it has examples."""
        if self.epilog:
            formatter.write(f"\n{self.epilog}\n")


def with_default(help_: str) -> str:
    """A help with "(default: X)" at its end in place of what typer adds."""
    if not (found := EXTRA.search(help_)):
        return help_
    said = [part for part in found[1].split("; ") if part.startswith("default: ")]
    text = help_[: found.start()]
    return f"{text.removesuffix('.')} ({said[0]})" if said else text


def fail(message: str, command: str = "equipoise", code: int = 2) -> NoReturn:
    print(f"{command}: {printable(message, lines=True)}", file=sys.stderr)
    sys.exit(code)


def one_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """A warning in one line without its place in the code, for ``warnings.formatwarning``."""
    said = wrapped(f"warning: {printable(str(message), lines=True)}", width_of(sys.stderr), "  ")
    return "\n".join(said) + "\n"


@contextmanager
def leaving() -> Iterator[None]:
    """Raise an exception at SIGTERM, so that servers of processes and temporary directories are
    removed.
    """
    before = signal.getsignal(signal.SIGTERM)
    if before is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(*_: object) -> NoReturn:
    from equipoise.runtime.session import Preempted

    raise Preempted


@contextmanager
def plain_errors(command: str, debug: bool) -> Iterator[None]:
    """Print an error that a user can put right as its message, without a traceback; end with one
    word and the usual exit code after Ctrl-C and SIGTERM.
    """
    try:
        with leaving():
            yield
    except KeyboardInterrupt as stop:
        from equipoise.runtime.session import Preempted

        fail("interrupted", command, 143 if isinstance(stop, Preempted) else 130)
    except (ValueError, OSError, ImportError) as error:
        if debug:
            raise
        from equipoise.console.topics import with_topic

        fail(with_topic(error), command)
