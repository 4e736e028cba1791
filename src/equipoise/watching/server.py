"""The server of the page: a socket first, so that a port that is taken is reported in one line;
then uvicorn until a signal.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from equipoise import web
from equipoise.listening import listen
from equipoise.watching.page import Page

LAST_S = 2  # that open connections have at the end
START_S = 20.0


class Server(web.Server):
    """Ends the streams of a page at the first signal: they would go on for ever."""

    def __init__(self, page: Page) -> None:
        self.page = page
        super().__init__(web.config(page.app))
        self.config.timeout_graceful_shutdown = LAST_S

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
