"""The server of the page: uvicorn until a signal, which ends the streams of the page first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from equipoise import web
from equipoise.pages.server import running
from equipoise.watching.page import Page

LAST_S = 2  # that open connections have at the end


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
    with running(Server(page), host, port) as served:
        try:
            yield served
        finally:
            page.close()
