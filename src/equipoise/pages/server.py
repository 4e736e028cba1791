"""A server of a page in a thread of this process, for tests and tools."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from equipoise import web
from equipoise.listening import listen

START_S = 20.0


@contextmanager
def running(server: web.Server, host: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """Run a server until the block ends -> its port."""
    listener = listen(host, port)
    thread = threading.Thread(target=server.run, args=([listener],), name="page")
    thread.start()
    try:
        end = time.monotonic() + START_S
        while not server.started and thread.is_alive() and time.monotonic() < end:
            time.sleep(0.01)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
