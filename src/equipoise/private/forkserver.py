"""Private names of the servers that multiprocessing forks processes from."""

from __future__ import annotations

import io
import os
import threading
from multiprocessing import context, forkserver, popen_forkserver, process, reduction, spawn, util
from typing import Any, ClassVar

ForkServer = forkserver.ForkServer


class ServedProcess(process.BaseProcess):
    """A process that is forked from the ``server`` of its class, if Python's own are all forked
    from one server.

    Tried: 3.11. If it is gone: let env workers be Python's own processes; each then has torch in it
    (200 MiB, and its start).
    """

    server: ClassVar[ForkServer]
    _start_method = "forkserver"

    @staticmethod
    def _Popen(process_obj: process.BaseProcess) -> _Popen:
        return _Popen(process_obj)


class _Popen(popen_forkserver.Popen):
    """Python's own, except for the server that it asks."""

    def _launch(self, process_obj: Any) -> None:
        data = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(process_obj._name), data)
            reduction.dump(process_obj, data)
        finally:
            context.set_spawning_popen(None)
        self.sentinel, writes = process_obj.server.connect_to_new_process(self._fds)  # type: ignore[attr-defined]
        alive = os.dup(writes)  # the child reads its end as ours
        self.finalizer = util.Finalize(self, util.close_fds, (alive, self.sentinel))  # type: ignore[attr-defined]
        with open(writes, "wb", closefd=True) as pipe:
            pipe.write(data.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)


def stop(server: ForkServer) -> None:
    """End a server, if it runs. Tried: 3.11. If it is gone: let it run until this process ends."""
    server._stop()  # type: ignore[attr-defined]


def forget(*servers: ForkServer) -> None:
    """Leave these servers, and Python's own, to the process that started them: for a copy of it
    (``os.fork``), which cannot wait for them. A later need starts others.

    Tried: 3.11. If it is gone: a process that is forked after a run cannot start one.
    """
    server: Any
    for server in (forkserver._forkserver, *servers):
        if server._forkserver_pid is not None:
            os.close(server._forkserver_alive_fd)
            server._forkserver_address = server._forkserver_alive_fd = None
            server._forkserver_pid = None
        server._lock = threading.Lock()  # another thread may have held it


def pid(server: ForkServer | None = None) -> int | None:
    """The process id of a server, by default Python's own; None if it does not run.

    Tried: 3.11. If it is gone: look for children of this process whose command line has
    ``forkserver``.
    """
    found: int | None = (forkserver._forkserver if server is None else server)._forkserver_pid  # type: ignore[attr-defined]
    return found
