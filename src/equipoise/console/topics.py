"""The topic of an error: a word in its message, with which ``equipoise help`` prints what to do."""

from __future__ import annotations

import tomllib
import traceback
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
# modules that raise for all topics: the module that called them decides
GENERAL = (
    "__init__",
    "files",
    "schema",
    "tree",
    "naming",
    "facts",
    "foreign",
    "hints",
    "errors",
    "tracing",
    "access",
    "listening",
    "web",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """The help for one kind of error."""

    name: str
    title: str
    modules: tuple[str, ...]  # below the package, without ".py"; a folder stands for all in it
    means: str
    do: str
    page: str  # below docs/

    def __str__(self) -> str:
        return f"{self.title}\n\n{self.means}\n{self.do}\n\nPage: docs/{self.page}"


@cache
def topics() -> dict[str, Topic]:
    """All topics by their names."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {
        name: Topic(name=name, **{**found, "modules": tuple(found["modules"])})
        for name, found in table.items()
    }


def topic_of_module(module: str) -> Topic | None:
    """The topic with the longest match for a module below the package, such as "envs/spaces"."""
    best, length = None, 0
    for topic in topics().values():
        for one in topic.modules:
            if (module == one or module.startswith(f"{one}/")) and len(one) > length:
                best, length = topic, len(one)
    return best


def topic_of(error: BaseException) -> Topic | None:
    """The topic of the innermost module of the package that raised the error or called the code
    that did; None if no module of the package did.
    """
    if isinstance(error, ModuleNotFoundError):
        return topics()["extra"]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if not file.is_relative_to(PACKAGE):
            continue
        module = file.relative_to(PACKAGE).with_suffix("").as_posix()
        if module not in GENERAL and (topic := topic_of_module(module)) is not None:
            return topic
    return None


def with_topic(error: BaseException) -> str:
    """The message of an error, and the command that explains it."""
    said = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.filename and said.startswith("[Errno"):
        said = f"{error.filename}: must be a place that can be used, got {error.strerror!r}"
    topic = topic_of(error)
    return said if topic is None else f"{said} [equipoise help {topic.name}]"
