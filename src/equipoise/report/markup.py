"""HTML and SVG as text: every string is escaped when it becomes a part of an element, and no number
is nan.
"""

from __future__ import annotations

import html
import math

from equipoise.console.place import printable

LONGEST_SENTENCE = 1200
VOID = frozenset({"meta", "link"})  # elements of HTML that have no end
EMPTY = frozenset({"rect", "path"})  # of SVG, without content


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Part = str | int | None  # a text to be escaped, markup as ``Html``, a count; None is nothing


def tag(name: str, *parts: Part, **attributes: str | float | None) -> Html:
    """An element. ``class_`` is class, ``stroke_width`` is stroke-width; None is left out."""
    said = "".join(
        f' {_key(key)}="{_value(value)}"' for key, value in attributes.items() if value is not None
    )
    if name in VOID or (name in EMPTY and not parts):
        return Html(f"<{name}{said}{'/' * (name in EMPTY)}>")
    return Html(f"<{name}{said}>{joined(*parts)}</{name}>")


def joined(*parts: Part) -> Html:
    """Parts one after the other, each escaped that is no markup."""
    return Html(
        "".join(
            part if isinstance(part, Html) else escaped(str(part))
            for part in parts
            if part is not None
        )
    )


def escaped(text: str) -> str:
    """Text from anywhere, as HTML shows it: a character that cannot be printed becomes its
    escape.
    """
    return html.escape(printable(text.replace("\t", " "), lines=True), quote=True)


def figure_number(value: float) -> str:
    """A length to a hundredth; ValueError for nan and infinity, which no figure can show."""
    if not math.isfinite(value):
        raise ValueError(f"a figure: expected a finite number, got {value}")
    return f"{round(value, 2) + 0.0:.12g}"


def _key(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    return escaped(value) if isinstance(value, str) else figure_number(value)
