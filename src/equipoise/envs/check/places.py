"""Places in an env's code: the file and line that an exception or a crash names, without the
machinery around it.
"""

from __future__ import annotations

import inspect
import os
import re
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np

import equipoise
from equipoise import foreign
from equipoise.hints import said

OURS = Path(equipoise.__file__).parent
TOYS = OURS / "envs" / "toys"
GYMNASIUM = Path(gymnasium.__file__).parent
NUMPY = Path(np.__file__).parent
STDLIB = Path(sysconfig.get_path("stdlib"))
LONGEST = 400  # characters of a message
SITE = ("site-packages", "dist-packages")
# a frame in faulthandler's output
DUMPED = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')


class Frame(NamedTuple):
    file: str
    line: int
    name: str

    def __str__(self) -> str:
        here = os.path.relpath(self.file)
        return f"{self.file if here.startswith('..') else here}:{self.line}, in {self.name}"


def of_error(error: BaseException) -> list[Frame]:
    """The frames of an exception, innermost last; the line of a SyntaxError is the innermost."""
    frames = [
        Frame(frame.f_code.co_filename, line, frame.f_code.co_qualname)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append(Frame(error.filename, error.lineno or 0, "the module"))
    return frames


def of_dump(lines: Sequence[str]) -> list[Frame]:
    """The frames that faulthandler wrote for one thread, innermost last."""
    matches = [match for line in lines if (match := DUMPED.match(line))]
    return [Frame(match["file"], int(match["line"]), match["name"]) for match in reversed(matches)]


def env_frame(frames: Sequence[Frame], home: str = "") -> Frame | None:
    """The innermost frame of the env: below ``home``, else outside packages or machinery."""
    theirs = [frame for frame in frames if is_theirs(frame.file)]
    for chosen in (
        [frame for frame in theirs if home and frame.file.startswith(home)],
        [frame for frame in theirs if not any(part in SITE for part in Path(frame.file).parts)],
        theirs,
    ):
        if chosen:
            return chosen[-1]
    return None


def is_theirs(file: str) -> bool:
    """Is it a file of an env: neither ours, nor Gymnasium's machinery, nor Python's?"""
    path = Path(file)
    if file.startswith("<") or path.is_relative_to(NUMPY):
        return False
    if path.is_relative_to(OURS):
        return not is_ours(file)
    if any(f"/pettingzoo/{part}/" in path.as_posix() for part in ("test", "utils")):
        return False
    if path.is_relative_to(GYMNASIUM):
        return len(parts := path.relative_to(GYMNASIUM).parts) > 2 and parts[0] == "envs"
    return not path.is_relative_to(STDLIB) or any(part in SITE for part in path.parts)


def is_ours(file: str) -> bool:
    """Is it a file of this package, but for its toys?"""
    return Path(file).is_relative_to(OURS) and not Path(file).is_relative_to(TOYS)


def home_of(env: object) -> str:
    """The folder of the class behind all wrappers, or its package; "" if it has no file."""
    try:
        file = Path(inspect.getfile(type(core(env))))
    except (TypeError, OSError):
        return ""
    for parent in file.parents:
        if parent.parent.name in SITE:
            return str(parent)
    return str(file.parent)


def core(env: object) -> object:
    """The env behind the wrappers, and behind our adapter of several agents."""
    inner = foreign.optional(env, "unwrapped", env)
    if type(inner).__module__.startswith("equipoise."):
        inner = foreign.optional(inner, "env", inner)
    return foreign.optional(inner, "unwrapped", inner)


def words(error: BaseException) -> str:
    """The text of an error, cut if it is long."""
    text = said(error)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def line_of(error: BaseException, env: object = None, method: str = "step") -> str:
    """Where an env raised: "file.py:12, in Env.step", or where its ``method`` begins."""
    frame = env_frame(frames := of_error(error), home_of(env) if env is not None else "")
    if frame is None and env is not None:
        try:
            code = foreign.attribute(type(core(env)), method).__code__
            return (
                f"the env's {method}: "
                f"{Frame(code.co_filename, code.co_firstlineno, code.co_qualname)}"
            )
        except AttributeError:  # written in C, for example
            pass
    return str(frame or frames[-1])
