"""The body of a process that calls reward functions: JSON lines come and go through one socket.
Nothing here loads torch.

To it: first ``{"functions": [names], "parent": pid}``, then the samples of one group at a time.
From it: ``{"ready": true}`` or ``{"unloaded": error}`` once, then for each group ``{"at": name}``
before each function, and ``{"parts": ...}`` or ``{"failed": name, "error": ...}`` at the end.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import threading
from io import BufferedRWPair

from setproctitle import setproctitle

from equipoise.hints import raised
from equipoise.language.scoring.functions import Part, Samples, call, load, what

PR_SET_PDEATHSIG = 1


def main(fd: int) -> None:
    """Serve until the socket ends. ``fd``: the descriptor of the socket; standard input ends
    with the parent."""
    threading.Thread(target=_end_with_parent, args=[_private_stdin()], daemon=True).start()
    setproctitle("equipoise reward")
    with socket.socket(fileno=fd) as connection, connection.makefile("rwb") as lines:
        _serve(lines)


def _serve(lines: BufferedRWPair) -> None:
    def send(**message: object) -> None:
        lines.write(json.dumps(message).encode() + b"\n")
        lines.flush()

    first = json.loads(lines.readline())
    die_with_parent(first["parent"])
    try:
        calls = [(name, load(name)) for name in first["functions"]]
    except Exception as error:  # whatever a user's module raises
        send(unloaded=str(error) if isinstance(error, ValueError) else raised(error))
        return
    send(ready=True)
    for line in lines:
        samples, parts = Samples(**json.loads(line)), dict[str, Part]()
        for name, function in calls:
            send(at=name)
            try:
                parts[name] = call(function, samples)
            # whatever a user's function raises costs its group
            except (Exception, SystemExit) as error:
                send(failed=name, error=what(error))
                break
        else:
            send(parts=parts)


def die_with_parent(parent: int) -> None:
    """End this process with its parent: a function may hold Python's lock while it hangs."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before this request
            os._exit(1)


def _private_stdin() -> int:
    """Take standard input away from functions and what they start, which would wait for it."""
    own, empty = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return own


def _end_with_parent(fd: int) -> None:
    """End where the kernel does not do it: the parent holds the other end of ``fd``."""
    while os.read(fd, 4096):
        pass
    os._exit(1)
