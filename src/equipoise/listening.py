"""Listening: sockets of a server, at a TCP address or at a path, where a place that is taken is said in one sentence."""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
import time
from pathlib import Path

log = logging.getLogger("equipoise.listening")

BACKLOG = 1024  # connections that wait to be accepted: beyond it Linux takes no more, and a caller may not notice
PROBE_S = 2.0  # for another server to take a connection
ACCEPTS = 16  # connections that asyncio takes in one turn of its loop: those beyond the bound are open for a turn
SPARE = 32  # descriptors that a server keeps for files: of decisions, and of versions that it loads
FEWEST = 4  # connections without which there is no use in a server


class Refusals:
    """Lines of a log about connections that are refused: one a second, with their number."""

    def __init__(self) -> None:
        self._count, self._next = 0, 0.0

    def add(self, what: str, most: int) -> None:
        self._count += 1
        if (now := time.monotonic()) >= self._next:
            log.warning(f"{what} are refused", extra={"most": most, "refused": self._count})
            self._count, self._next = 0, now + 1.0


def fitting(most: int, listeners: int) -> int:
    """How many connections, at most ``most``, each listener may have so that the descriptors of this process suffice.

    The soft limit of descriptors is raised as far as the hard one allows; OSError where that is too few for any use.
    """
    import resource  # not on Windows, where worlds listen as well

    open_now = len(os.listdir("/dev/fd")) if os.path.isdir("/dev/fd") else 2 * SPARE
    beside = open_now + SPARE + listeners * (ACCEPTS + 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = beside + listeners * most
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if raised > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    fit = most if soft == resource.RLIM_INFINITY else min(most, (soft - beside) // max(1, listeners))
    if fit < min(most, FEWEST):
        raise OSError(
            errno.EMFILE, f"expected a limit of at least {beside + listeners * FEWEST} open files (ulimit -n), got {soft}"
        )
    if fit < most:
        log.warning("fewer connections than asked for", extra={"most": fit, "asked": most, "open_files": soft})
    return fit


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at an address; OSError where that cannot be. Port 0 is any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named, asyncio sets TCP_NODELAY on what it accepts; without it an answer in two parts takes 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listening.close()
        said = getattr(error, "strerror", None) or str(error)
        raise OSError(f"{host}:{port}: expected an address and a port that are free here, got {said}") from error
    return listening


def listen_at(path: str | os.PathLike[str]) -> socket.socket:
    """A socket that listens at a path, which only this user can reach; OSError where another listens, or another file is.

    A socket that a dead process left is replaced.
    """
    _unused(Path(path))
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(os.fspath(path))
        os.chmod(path, 0o600)  # nobody can connect before it listens
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise OSError(f"{path}: expected a path where this user may listen, got {error.strerror or error}") from error
    return listening


def _unused(path: Path) -> None:
    """Remove a socket on which nobody listens any more."""
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
    raise OSError(f"{path}: expected a path on which nobody listens, got one on which another process does")
