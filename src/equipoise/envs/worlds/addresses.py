"""Addresses that worlds connect to: where a run listens, and the private socket by which its
workers are dealt worlds.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from equipoise.listening import listen, listen_at
from equipoise.types import REMOTE

EXPECTED = "remote:tcp://HOST:PORT or remote:unix:PATH, such as remote:tcp://127.0.0.1:7000"
LONGEST_PATH = 100  # bytes: the kernel takes about 107 (macOS 103)


@dataclass(frozen=True, slots=True)
class Address:
    """A place to listen at: HOST and port, or the path of a unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def of(cls, target: str) -> Address:
        """Read a target; ValueError for any other text."""
        said = target.removeprefix(REMOTE)
        if said.startswith("unix:") and (path := said.removeprefix("unix:").removeprefix("//")):
            path = os.path.abspath(os.path.expanduser(path))
            if len(os.fsencode(path)) > LONGEST_PATH:
                raise ValueError(
                    f"{target}: expected a path of at most {LONGEST_PATH} bytes, got "
                    f"{len(os.fsencode(path))}: {path}"
                )
            return cls(path=path)
        try:
            parts = urlsplit(said)
            port = parts.port or 0
        except ValueError as error:  # a port beyond 65535, a bracket that is not closed
            raise ValueError(f"{target}: expected {EXPECTED}: {error}") from error
        if (
            parts.scheme != "tcp"
            or not parts.hostname
            or not port
            or parts.path.strip("/")
            or parts.query
            or parts.username
        ):
            raise ValueError(f"{target}: expected {EXPECTED}")
        return cls(host=parts.hostname, port=port)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"unix:{self.path}" if self.path else f"tcp://{host}:{self.port}"

    def listen(self) -> socket.socket:
        """A socket that listens here; OSError if another program does."""
        return listen_at(self.path) if self.path else listen(self.host, self.port)

    @property
    def private(self) -> str:
        """The path of the socket between the process that listens and the workers.

        It follows from the address alone, so that workers find it.
        """
        folder = Path(tempfile.gettempdir()) / f"equipoise-worlds-{os.geteuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        about = folder.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise OSError(
                f"{folder}: expected a folder that only this user can enter, got another; remove it"
            )
        return str(folder / f"{hashlib.sha256(str(self).encode()).hexdigest()[:24]}.sock")
