"""The origin of a run: the versions of its packages, and the machine."""

from __future__ import annotations

import platform
import socket
from importlib import metadata
from typing import Any

from equipoise.cores import usable

PACKAGES = ("equipoise", "torch", "numpy", "gymnasium", "safetensors", "ray")


def versions() -> dict[str, str | None]:
    """The versions of Python and of the packages that decide what a run computes, read without importing them."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def host() -> dict[str, Any]:
    """The machine: its name, its platform and the cores that this process may use."""
    named = {"name": socket.gethostname(), "platform": platform.platform(), "machine": platform.machine()}
    return named | {"cores": usable()}
