"""Private names of Brax."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module


def envs() -> Mapping[str, type]:
    """The classes of Brax's envs by name. Brax has no public list.

    Tried: 0.14.2. If it is gone: write the names down here; ``brax.envs.create`` takes one.
    """
    found: Mapping[str, type] = import_module("brax.envs")._envs
    return found
