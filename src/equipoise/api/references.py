"""Names of a user's functions and classes: a run stores ``module:name``, and workers import it."""

from __future__ import annotations

import functools
import sys

from equipoise.foreign import has, optional

__all__ = ["reference"]

MAIN = "__main__"


def reference(thing: object, what: str, *, main: bool = True) -> str:
    """The ``module:name`` of a function or a class.

    ``what``: the name of the option, which begins each error. ``main``: may it be of a script or a
    notebook, which is sent to the workers as it is? TypeError for an object of another kind,
    ValueError if no import reaches it.
    """
    if isinstance(thing, functools.partial):
        raise TypeError(
            f"{what}: must be a function or a class that workers import by its name, got "
            f"{thing!r}; define a function that calls it"
        )
    if not callable(thing) or not has(thing, "__qualname__", "__module__"):
        raise TypeError(
            f"{what}: must be a function or a class that workers import by its name, got {thing!r}"
        )
    module, name = str(optional(thing, "__module__")), str(optional(thing, "__qualname__"))
    if "<" in name:
        raise ValueError(
            f"{what}: must be at the top of a module, so that workers can import it, got "
            f"{module}:{name}; define it with 'def' or 'class' at the top of a file"
        )
    if module == MAIN and not main:
        raise ValueError(
            f"{what}: must be of a module that its own process can import, got {name} of a script "
            f"or a notebook; put it into a file such as rewards.py, and write 'from rewards import "
            f"{name}'"
        )
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = optional(found, part)
    if found is not thing and optional(found, "__wrapped__") is not thing:
        raise ValueError(
            f"{what}: must be what {module}:{name} names, so that workers can import it, got "
            "another object of that name; give it a name of its own at the top of its module"
        )
    return f"{module}:{name}"
