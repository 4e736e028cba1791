"""A page on a real port for tests, and what a client asks of it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from equipoise.watching.page import Page, folder
from equipoise.watching.server import serving
from equipoise.watching.versions import Versions

TOKEN = "a-token-of-24-letters-xx"


class Client:
    """Asks one server; ``headers`` are said with every question."""

    def __init__(self, page: Page, port: int, **headers: str) -> None:
        self.page, self.port, self.headers = page, port, headers

    def ask(
        self, path: str, body: Any = None, method: str | None = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        """Status, body (as JSON where it is that) and headers."""
        said = {
            "Host": f"127.0.0.1:{self.port}",
            **self.headers,
            **{key.replace("_", "-"): x for key, x in headers.items()},
        }
        data = (
            None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        )
        if data is not None:
            said.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method or ("GET" if data is None else "POST"), path, data, said)
            answer = connection.getresponse()
            found: Any = answer.read()
            if answer.headers.get_content_type() == "application/json":
                found = json.loads(found)
            return answer.status, found, dict(answer.headers)
        finally:
            connection.close()

    @contextmanager
    def events(
        self, path: str = "/api/events", **headers: str
    ) -> Iterator[Iterator[tuple[str, Any]]]:
        """The events as they come: (name, data)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(
                "GET", path, headers={"Host": f"127.0.0.1:{self.port}", **self.headers, **headers}
            )
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            yield _events(answer)
        finally:
            connection.close()


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    name = ""
    while line := answer.readline().decode():
        if line.startswith("event: "):
            name = line[7:].strip()
        elif line.startswith("data: "):
            yield name, json.loads(line[6:])


@contextmanager
def opened(place: Path, registry: Path | None = None, *, closed: bool = False) -> Iterator[Client]:
    """A page of the runs in ``place``, served until the block ends."""
    page = Page(
        folder(place), None if registry is None else Versions(registry), token=TOKEN, closed=closed
    )
    with serving(page) as port:
        yield Client(page, port)
