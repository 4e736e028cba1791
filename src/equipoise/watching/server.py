"""The server of the page: a socket first, so that a port that is taken is said in one line; then uvicorn until a signal."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from equipoise.watching.page import Page

LAST_S = 2  # that open connections have at the end
BACKLOG = 128
START_S = 20.0


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; ValueError where that cannot be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        said = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"--host {host} --port {port}: nothing can listen there: {said}; --port 0 takes a free one") from None
    listener.listen(BACKLOG)
    return listener


class Server(uvicorn.Server):
    """Ends the streams of a page at the first signal: they would go on for ever."""

    def __init__(self, page: Page) -> None:
        self.page = page
        super().__init__(uvicorn.Config(
            page.app, log_config=None, access_log=False, lifespan="off", server_header=False, ws="none", http="h11",
            loop="asyncio", timeout_graceful_shutdown=LAST_S, limit_concurrency=256, h11_max_incomplete_event_size=16 << 10,
        ))  # fmt: skip

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.page.close()
        super().handle_exit(sig, frame)


@contextmanager
def serving(page: Page, host: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """Serve a page from a thread of this process -> its port."""
    listener = listen(host, port)
    server = Server(page)
    thread = threading.Thread(target=server.run, args=([listener],), name="page")
    thread.start()
    try:
        end = time.monotonic() + START_S
        while not server.started and thread.is_alive() and time.monotonic() < end:
            time.sleep(0.01)
        yield listener.getsockname()[1]
    finally:
        page.close()
        server.should_exit = True
        thread.join()
        listener.close()
