"""One artifact served without a registry: its version is the champion for as long as the server
runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Alone:
    """A ``Source`` of one version, to which its only alias always points."""

    artifact: Path
    version: str

    def revision(self, name: str) -> object:
        return 0

    def aliases(self, name: str) -> Mapping[str, str]:
        return {"champion": self.version}

    def resolve(self, name: str, version: str) -> tuple[str, Path]:
        return self.version, self.artifact
