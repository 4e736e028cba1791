"""Equipoise: actors that make experience, learners that consume it, and everything that keeps the
two in balance.

``import equipoise as eq`` costs nothing: a part that needs torch is imported with its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equipoise.api import (
        Player,
        check,
        collect,
        configured,
        evaluate,
        export,
        forecast,
        load,
        play,
        plot,
        program,
        resume,
        start,
        watch,
        whatif,
    )

__version__ = "0.1.0"
__all__ = [
    "Player",
    "__version__",
    "check",
    "collect",
    "configured",
    "evaluate",
    "export",
    "forecast",
    "load",
    "play",
    "plot",
    "program",
    "resume",
    "start",
    "watch",
    "whatif",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("equipoise.api"), name)
    raise AttributeError(
        f"module 'equipoise' has no attribute {name!r}; it has {', '.join(__all__)}"
    )
