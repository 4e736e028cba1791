"""Attributes of objects that a user's code or another package made: reading them may raise
anything.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from equipoise.hints import raised

Foreign = Any  # an object of another library, whose types are that library's


class Unreadable(ValueError):
    """The error of an attribute that raises something else than AttributeError; that error is the
    cause.
    """


def attribute(thing: object, name: str, default: object = None) -> Any:
    """Return the attribute, or ``default`` if there is none; Unreadable if asking raises."""
    try:
        return getattr(thing, name, default)
    except MemoryError:
        raise
    except Exception as error:
        owner = thing if isinstance(thing, type | ModuleType) else type(thing)
        raise Unreadable(
            f"{name} of {owner.__name__}: expected a value, got {raised(error)}"
        ) from error


def optional(thing: object, name: str, default: object = None) -> Any:
    """Return the attribute, or ``default`` if there is none or asking for it raises: for what a
    foreign object need not have.
    """
    try:
        return attribute(thing, name, default)
    except Unreadable:
        return default


def has(thing: object, *names: str) -> bool:
    """Does the object have all of these attributes, without an error?"""
    return all(optional(thing, name, ABSENT) is not ABSENT for name in names)


def calls(thing: object, *names: str) -> bool:
    """Does the object have all of these methods?"""
    return all(callable(optional(thing, name)) for name in names)


def listed(value: object) -> Any:
    """Return an array or scalar of another library (NumPy, torch) as Python's numbers and lists;
    any other value as it is.
    """
    take = optional(value, "tolist")
    return take() if callable(take) else value


ABSENT = object()
