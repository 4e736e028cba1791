"""Equipoise: reinforcement learning whose actors and learners are kept in balance.

``import equipoise as eq`` costs nothing: a part that needs torch is imported with its first use.

Example:
    >>> result = eq.train("CartPole-v1", "ppo", **small)
    >>> result.status
    'completed'
"""

from __future__ import annotations

import typing as _typing
from importlib import import_module as _import_module

if _typing.TYPE_CHECKING:
    from equipoise import algorithms
    from equipoise.api import (
        Callback,
        Player,
        Result,
        Tuned,
        check,
        collect,
        configured,
        converse,
        evaluate,
        export,
        fit_reward_model,
        forecast,
        generate,
        load,
        play,
        plot,
        probe,
        program,
        resume,
        score,
        start,
        train,
        tune,
        whatif,
    )

__version__ = "0.1.0"
__all__ = [
    "Callback",
    "Player",
    "Result",
    "Tuned",
    "__version__",
    "algorithms",
    "check",
    "collect",
    "configured",
    "converse",
    "evaluate",
    "export",
    "fit_reward_model",
    "forecast",
    "generate",
    "load",
    "play",
    "plot",
    "probe",
    "program",
    "proxy",
    "resume",
    "score",
    "start",
    "train",
    "tune",
    "whatif",
]


def __dir__() -> list[str]:
    return sorted(__all__)


if not _typing.TYPE_CHECKING:  # a type checker knows the names, and finds a wrong one

    def __getattr__(name: str) -> object:
        if name == "algorithms":
            return _import_module("equipoise.algorithms")
        if name in __all__:
            return getattr(_import_module("equipoise.api"), name)
        raise AttributeError(
            f"module 'equipoise' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
