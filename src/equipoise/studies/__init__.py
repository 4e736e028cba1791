"""Studies: loops around runs that search, breed, stop and compare, as a directory that a killed
study goes on from.
"""

from __future__ import annotations

from collections.abc import Callable as _Callable
from importlib import import_module as _import_module
from typing import Any as _Any


def __getattr__(name: str) -> _Callable[..., _Any]:
    """``trainable`` and ``objective``, which train: the package of runs is imported with them."""
    if name in ("objective", "trainable"):
        found: _Callable[..., _Any] = getattr(_import_module("equipoise.api.outside_tuners"), name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
