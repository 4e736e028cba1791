"""Names of code as data: the object that ``module:name`` names, imported."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from equipoise import foreign
from equipoise.hints import hint, raised

ABSENT = object()


def called(name: str, what: str) -> Callable[..., Any]:
    """Import the function ``module:name``; ValueError, which begins with ``what`` it is, names the
    nearest.
    """
    found = imported(name, what)
    if not callable(found):
        raise ValueError(
            f"{what} {name!r}: expected a function, got {type(found).__name__} {found!r}"
        )
    return found


def imported(name: str, what: str) -> object:
    """Import whatever ``module:name`` names; ValueError as from ``called``."""
    module, _, path = name.partition(":")
    if not module or not path:
        raise ValueError(f"{what}: expected module:name, got {name!r}")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists and lacks a dependency
        raise ValueError(
            f"{what} {name!r}: no module {error.name!r} is found here or among the installed ones"
        ) from error
    except ImportError:
        raise  # the caller may name the package to install
    except Exception as error:  # the module of a user may raise anything
        raise ValueError(
            f"{what} {name!r}: expected a module that can be imported, got {raised(error)}"
        ) from error
    for part in path.split("."):
        one = foreign.attribute(found, part, ABSENT)
        if one is ABSENT:
            names = [
                key
                for key, value in foreign.optional(found, "__dict__", {}).items()
                if callable(value) and not key.startswith("_")
            ]
            raise ValueError(f"{what} {name!r}: unknown function {part!r}{hint(part, names)}")
        found = one
    return found
