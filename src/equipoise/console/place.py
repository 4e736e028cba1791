"""Where output goes: how wide its lines may be, and whether it can be drawn over or answered.

A terminal has columns, and COLUMNS may set their number. A pipe has no columns, so that one message
is one line of a log.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

USUAL = 80  # columns of a terminal that does not report them
COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # Gymnasium colours its warnings even in a pipe
UNBROKEN = "\N{NO-BREAK SPACE}"


def in_ci() -> bool:
    """Return True on a build server, which has no reader and no keyboard."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def in_colour() -> bool:
    """Return True if the user wants colours and bold text, False with NO_COLOR (no-color.org)."""
    return not os.environ.get("NO_COLOR")


def is_live(stream: object) -> bool:
    """Return True if the stream is an interactive terminal."""
    return is_terminal(stream) and os.environ.get("TERM") != "dumb" and not in_ci()


def width_of(stream: Any) -> int | None:
    """Return the columns of a line of this stream, or None if they are unknown."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said) > 0:
        return int(said)
    if not is_terminal(stream):
        return None
    # of this stream: output to descriptor 1 may go elsewhere meanwhile (``aside.py``)
    try:
        return os.get_terminal_size(stream.fileno()).columns or USUAL
    except (OSError, ValueError):
        return USUAL


def size_of(stream: Any) -> tuple[int, int] | None:
    """Return the columns and lines of a stream's terminal, or None without a terminal."""
    width = width_of(stream)
    try:
        return None if width is None else (width, os.get_terminal_size(stream.fileno()).lines)
    except (OSError, ValueError):
        return None


def printable(text: str, *, lines: bool = False) -> str:
    """Text from a file, an env or another user, as one line that a terminal shows as it is.

    Characters that begin a line, move the cursor, change the direction of writing or the colour are
    escaped, as are halves of characters. ``lines``: the text may have several lines.
    """
    kept = "\n\t" if lines else "\t"
    return "".join(
        c if c.isprintable() or c in kept else repr(c)[1:-1] for c in COLOUR.sub("", text)
    )


def wrapped(text: str, width: int | None, indent: str = "") -> list[str]:
    """Return the lines of a text, broken between words, with ``indent`` before all but the first of
    each.

    A word that is longer than a line, such as a path, stays whole.
    """
    if width is None:
        return text.splitlines()
    options: dict[str, Any] = {
        "break_long_words": False,
        "break_on_hyphens": False,
        "subsequent_indent": indent,
    }
    lines = (
        textwrap.wrap(line, width, replace_whitespace=False, **options)
        for line in text.splitlines()
    )
    return [line for found in lines for line in found or [""]]


def joined(parts: Sequence[str], width: int | None, indent: str) -> list[str]:
    """Join parts side by side, two spaces apart, as lines that are broken between parts. A part
    that is longer than a line is broken between words.
    """
    if width is None:
        return ["  ".join(parts)]
    short = width - len(indent)
    whole = "  ".join(part.replace(" ", UNBROKEN) if len(part) <= short else part for part in parts)
    return [line.replace(UNBROKEN, " ") for line in wrapped(whole, width, indent)]


def say(text: str, *, file: Any = None, indent: str = "  ") -> None:
    """Print a text in lines that the stream has the columns for; by default on stdout."""
    out = sys.stdout if file is None else file
    print(
        "\n".join(wrapped(printable(text, lines=True), width_of(out), indent)), file=out, flush=True
    )


def is_descriptor(stream: Any, number: int) -> bool:
    """Return True if this stream is the process's own, and not a stand-in."""
    try:
        return bool(stream.fileno() == number)
    except (OSError, ValueError, AttributeError):
        return False


def is_terminal(stream: Any) -> bool:
    """Return True if this stream is a terminal's."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # a stand-in, or closed
        return False


def in_notebook() -> bool:
    """Is this process the kernel of a notebook?"""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


def number(value: float | None, decimals: int = 1) -> str:
    """A return to one decimal, or a dash before there is one."""
    return "—" if value is None else f"{value:,.{decimals}f}"
