"""Small stores of questions for tests of the page, and its server."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from equipoise import web
from equipoise.feedback import Plan, Store
from equipoise.labeling.page import Page
from equipoise.pages.server import running

TOKEN = "an-owner-token-of-tests"


def dot(speed: int, steps: int = 12, size: int = 32) -> dict[str, Any]:
    """A clip of a dot that moves to the right."""
    frames = np.zeros((steps, size, size, 3), np.uint8)
    for step in range(steps):
        at = (speed * step) % (size - 4)
        frames[step, 12:16, at : at + 4] = (255, 200, 40)
    return {"frames": frames, "fps": np.array([30.0])}


def waves(phase: int, steps: int = 40) -> dict[str, Any]:
    """A clip without frames: two observations over time."""
    t = np.linspace(0, 6, steps, dtype=np.float32) + phase
    return {"observations": np.stack([np.sin(t), np.cos(t)], 1), "fps": np.array([60.0])}


def store(place: Path, *, clips: int = 0, curves: int = 0, texts: int = 0, **plan: Any) -> Store:
    """A store with so many questions of each kind, without gold and repeats unless asked for."""
    made = Store.create(place, Plan(**{"gold_share": 0.0, "repeat_share": 0.0, **plan}))
    for n in range(clips):
        made.add_query("clip", made.add_segment(dot(n)), made.add_segment(dot(n + 1)))
    for n in range(curves):
        made.add_query("clip", made.add_segment(waves(n)), made.add_segment(waves(n + 1)))
    for n in range(texts):
        left, right = (made.add_text(f"answer {n} {side}") for side in ("one", "two"))
        made.add_query("text", left, right, prompt=made.add_text(f"prompt {n}"))
    return made


class Client:
    """Asks one server with the cookie of one person."""

    def __init__(self, port: int, token: str = "", cookie: str = "equipoise_label") -> None:
        self.port = port
        self.cookie = f"{cookie}_{port}={token}" if token else ""

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
        """Status, body (as JSON where it is that) and headers."""
        said = {"Host": f"127.0.0.1:{self.port}"} | ({"Cookie": self.cookie} if self.cookie else {})
        said |= {key.replace("_", "-"): value for key, value in headers.items()}
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            said.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET" if data is None else "POST", path, data, said)
            answer = connection.getresponse()
            found: Any = answer.read()
            if answer.headers.get_content_type() == "application/json":
                found = json.loads(found)
            return answer.status, found, dict(answer.headers)
        finally:
            connection.close()

    def question(self) -> dict[str, Any]:
        """What the page shows now; the request must succeed."""
        status, found, _ = self.ask("/api/question")
        assert status == 200, found
        told: dict[str, Any] = found
        return told

    def answer(self, lease: int, choice: str = "left") -> tuple[int, Any]:
        body = {"lease": lease, "choice": choice, "latency_s": 1.5}
        return self.ask("/api/answer", body)[:2]


@contextmanager
def opened(store: Store) -> Iterator[int]:
    """The page of a store, served until the block ends -> its port."""
    page = Page(store, token=TOKEN)
    try:
        with running(web.Server(web.config(page.app))) as port:
            yield port
    finally:
        page.close()
