"""The origin of a run: the versions of its packages, and the machine."""

from __future__ import annotations

import platform
import socket
from importlib import metadata
from pathlib import Path

from equipoise.cores import usable

PACKAGES = ("equipoise", "torch", "numpy", "gymnasium", "safetensors", "ray")


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that decide results, read without an import."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def host() -> dict[str, object]:
    """The machine: its name, its platform and the cores that this process may use."""
    named = {
        "name": socket.gethostname(),
        "platform": platform.platform(),
        "machine": platform.machine(),
    }
    return named | {"cores": usable()}


def commit(start: Path) -> str | None:
    """The commit checked out if a run is started, read without git; None if there is none."""
    try:
        root = next((one for one in (start, *start.parents) if (one / ".git").exists()), None)
        return None if root is None else _head(root / ".git")
    except (OSError, UnicodeDecodeError):
        return None


def _head(git: Path) -> str | None:
    if git.is_file():  # of a worktree
        git = git.parent / git.read_text().partition("gitdir:")[2].strip()
    head = (git / "HEAD").read_text().strip()
    name = head.removeprefix("ref: ")
    if name == head:
        return head
    common = git / (git / "commondir").read_text().strip() if (git / "commondir").is_file() else git
    for place in (git / name, common / name):
        if place.is_file():
            return place.read_text().strip()
    packed = (
        (common / "packed-refs").read_text().splitlines()
        if (common / "packed-refs").is_file()
        else []
    )
    return next((line.partition(" ")[0] for line in packed if line.endswith(f" {name}")), None)
