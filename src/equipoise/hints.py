"""Parts of an error message: the nearest valid name, or all of them; what to install; what a user's
code raised, and where.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Collection
from difflib import SequenceMatcher
from importlib import metadata
from pathlib import Path

LONGEST = 4_000  # characters of the error of a user's code
NEAR = 0.7  # similarity of two names, 0 to 1, from which one may stand for the other
NEAR_WORD = 0.6  # the same for each pair of words of two names with equally many words
NEAR_WHOLE = 0.85  # the same for names with different numbers of words
# letters of a name that is compared: the time grows with the product of two lengths
LONGEST_NAME = 128
STDLIB, PACKAGE = Path(sysconfig.get_path("stdlib")), Path(__file__).parent
SITE = ("site-packages", "dist-packages")  # folders of installed packages


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known name most like this one; None if no name is near.

    A name is near if what follows its last dot or slash is; if both have one, the whole name also
    has to be. Names of more than ``LONGEST_NAME`` letters are like no other.
    """
    if len(name) > LONGEST_NAME:
        return None
    likeness = {
        other: (similarity(name, other), _ratio(name.lower(), other.lower()))
        for other in sorted(known)
        if len(other) <= LONGEST_NAME
    }
    best = max(likeness, key=lambda other: likeness[other], default=None)
    return best if best is not None and likeness[best][0] >= NEAR else None


def similarity(name: str, other: str) -> float:
    """Similarity of two names, from 0 to 1; 0 if one word of them differs too much.

    ``min_lag`` and ``max_lag`` share most letters and mean opposite things, so words are compared.
    """
    one, two = _words(_last(name)), _words(_last(other))
    whole = _ratio("".join(one), "".join(two))
    if len(one) == len(two):
        if any(
            _ratio(mine, its) < NEAR_WORD
            for mine, its in zip(one, two, strict=True)
            if max(len(mine), len(its)) > 2  # not of v0 and v1
        ):
            return 0.0
    elif _within(one, two):  # max_steps and max_episode_steps
        whole = max(whole, NEAR)
    elif whole < NEAR_WHOLE:
        return 0.0
    parted = [bool(re.search(r"[./]", text)) for text in (name, other)]
    if parted == [True, True] and one != two:  # the same name in another room is near
        whole = min(whole, _ratio(name.lower(), other.lower()))
    return whole if parted[0] == parted[1] else 0.95 * whole


def _within(one: list[str], two: list[str]) -> bool:
    """Are the words of the shorter name, two or its first one, words of the other, in order?"""
    short, long = sorted((one, two), key=len)
    rest = iter(long)
    return all(word in rest for word in short) and (len(short) > 1 or short == long[:1])


def _ratio(name: str, other: str) -> float:
    return SequenceMatcher(None, name, other).ratio()


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", name) if word]


def hint(name: str, known: Collection[str]) -> str:
    """The end of an error message: "; did you mean 'gamma'?", and all valid names if they are few
    or no name is near.
    """
    if not known:
        return "; nothing is valid here"
    best, valid = nearest(name, known), f"valid: {', '.join(sorted(known))}"
    if best is None:
        return f"; {valid}."
    return f"; did you mean {best!r}?" + (f" ({valid})" if len(known) <= 8 else "")


def meant(name: str, known: Collection[str]) -> str:
    """The nearest name, as "; did you mean 'gamma'?", or "" if no name is near: for a message that
    lists the valid names itself.
    """
    best = nearest(name, known)
    return f"; did you mean {best!r}?" if best is not None else ""


def sentence(text: str) -> str:
    """Text with a full stop at its end, if it has no other end."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def shortened(text: str, most: int = 80) -> str:
    """Text of at most ``most`` letters: the end of a longer one is left out."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def one_line(text: str) -> str:
    """Text of another program in one line, without control characters."""
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())


def install(extra: str) -> str:
    """The command that installs the packages of one of the project's extras."""
    try:
        lines = metadata.requires("equipoise") or []
    except metadata.PackageNotFoundError:  # run from its source alone
        lines = []
    needed = [
        line.partition(";")[0].strip()
        for line in lines
        if re.search(rf"extra == ['\"]{extra}['\"]", line)
    ]
    return (
        f"pip install {' '.join(repr(one) for one in needed)}"
        if needed
        else f"install its extra {extra!r}"
    )


def where_modules_lie() -> str:
    """A sentence on where modules are looked for."""
    here = os.getcwd()
    place = here if {"", here} & set(sys.path) else sys.path[0]
    return f"Modules are looked for in {place} and among the installed packages."


def message(error: BaseException) -> str:
    """The message of an error, whatever the ``str()`` of a user's own error does."""
    try:
        return str(error)
    except Exception as inner:
        return f"an error without a message, since its str() raises {type(inner).__name__}"


def said(error: BaseException) -> str:
    """The message of an error; without one, as of a bare assert, the line that raised it."""
    text = message(error).strip()
    if text:
        text = text.encode(errors="backslashreplace").decode()  # half a character cannot be printed
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text):,} characters)"
    frames = traceback.extract_tb(error.__traceback__)
    return (frames[-1].line or "" if frames else "") or "no message"


def raised(error: BaseException) -> str:
    """The kind, message and line of an error that a user's code raised, or of its SyntaxError.

    The line is the last one outside Python, this package and installed packages, if there is one: a
    mistake in a class often raises in `dataclasses` or torch.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    at = next((frame for frame in reversed(frames) if _of_a_user(frame.filename)), frames[-1])
    return f"{type(error).__name__}: {said(error)} ({at.filename}, line {at.lineno})"


def trace(error: BaseException) -> str:
    """The traceback of an error from the first line of a user's code on; the whole one if no line
    is a user's.
    """
    told = traceback.TracebackException.from_exception(error)
    told.stack = traceback.StackSummary.from_list(_from_a_user(told.stack) or told.stack)
    return "".join(told.format())


def in_code_of_a_user(error: BaseException) -> bool:
    """Was an error raised in a user's code, or in what that called?"""
    return bool(_from_a_user(traceback.extract_tb(error.__traceback__)))


def _from_a_user(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    first = next((i for i, at in enumerate(frames) if _of_a_user(at.filename)), len(frames))
    return frames[first:]


def _of_a_user(file: str) -> bool:
    """Is it a file outside Python, this package and the installed packages?"""
    path = Path(file)
    return not (
        file.startswith("<")
        or path.is_relative_to(STDLIB)
        or path.is_relative_to(PACKAGE)
        or any(part in SITE for part in path.parts)
    )


def _last(name: str) -> str:
    """The part after the last dot or slash: ``Pong-v5`` of ``ALE/Pong-v5``, a setting's field."""
    return re.split(r"[./]", name.lower())[-1]
