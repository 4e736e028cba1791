"""Listening: sockets of a server, at a TCP address or at a path, with one sentence for a taken
place.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import time
from pathlib import Path

# connections that wait to be accepted: beyond it Linux takes no more, and a caller may not notice
BACKLOG = 1024
PROBE_S = 2.0  # for another server to take a connection
FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # no room for one more connection
# of a loop that accepts, if there is none: the connection stays, so it would turn without end
PAUSE_S = 0.05


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at an address; OSError if that cannot be. Port 0 is any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named, asyncio sets TCP_NODELAY on what it accepts; without it an answer in
    # two parts takes 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listening.close()
        said = getattr(error, "strerror", None) or str(error)
        raise OSError(
            f"{host}:{port}: expected an address and a port that are free here, got {said}"
        ) from error
    return listening


def accept(listening: socket.socket) -> socket.socket | None:
    """The next connection of a socket that does not block. None: it has gone already, or there is
    no room for it now.

    If no descriptor is left it sleeps for a moment, so that the loop that calls it does not take a
    core.
    """
    try:
        return listening.accept()[0]
    except OSError as error:
        if error.errno in FULL:
            time.sleep(PAUSE_S)
        return None


def listen_at(path: str | os.PathLike[str]) -> socket.socket:
    """A socket that listens at a path, which only this user can reach; OSError if another listens,
    or another file is.

    A socket that a dead process left is replaced.
    """
    _unused(Path(path))
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(os.fspath(path))
        os.chmod(path, 0o600)  # no process can connect before it listens
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise OSError(
            f"{path}: expected a path where this user may listen, got {error.strerror or error}"
        ) from error
    return listening


def _unused(path: Path) -> None:
    """Remove a socket without a listener."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(f"{path}: expected a socket, or nothing, got another file")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except (TimeoutError, BlockingIOError):
            pass  # it listens, and too many wait for it
    raise OSError(
        f"{path}: expected a path on which nobody listens, got one on which another process does"
    )
