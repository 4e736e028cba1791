"""A server that speaks OpenEnv's protocol, as ``openenv-core`` 0.3 and ``openenv`` 0.10 do, with a
game whose moves depend on what the client sends.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

TEXT = {"type": "string"}
WORDS = {"text": TEXT, "done": {"type": "boolean"}, "metadata": {"type": "object"}}
Answer = Callable[["Server", ServerConnection, Mapping[str, Any], dict[str, Any]], object]


class Server:
    """Its ``port``, and what happened: ``open`` sessions, the ``most`` at once, ``resets``."""

    def __init__(self, sessions: int, answer: Answer, action: Any, observation: Any) -> None:
        self.sessions, self.answer = sessions, answer
        self.schema: object = {"action": action, "observation": observation, "state": {}}
        self.open = self.most = self.port = 0
        self.resets: list[object] = []
        self.headers: list[str | None] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"openenv:http://127.0.0.1:{self.port}"

    def plain(self, connection: ServerConnection, request: Request) -> Response | None:
        self.headers.append(request.headers.get("Authorization"))
        if request.path == "/ws":
            return None
        body = json.dumps(self.schema).encode() if request.path == "/schema" else b"{}"
        return Response(200 if request.path == "/schema" else 404, "-", Headers(), body)

    def session(self, connection: ServerConnection) -> None:
        with self.lock:
            full = self.open >= self.sessions
            self.open += not full
            self.most = max(self.most, self.open)
        if full:
            said = {"message": f"Server at capacity: {self.sessions}", "code": "CAPACITY_REACHED"}
            connection.send(json.dumps({"type": "error", "data": said}))
            return
        state: dict[str, Any] = {}
        try:
            for message in connection:
                given = json.loads(message)
                if given["type"] == "state":
                    connection.send(json.dumps({"type": "state", "data": {}}))
                    continue
                if given["type"] == "reset":
                    self.resets.append(given["data"])
                answer = self.answer(self, connection, given, state)
                if answer is not None:
                    connection.send(answer if isinstance(answer, str) else json.dumps(answer))
        finally:
            with self.lock:
                self.open -= 1


def seen(text: object, reward: object = None, done: object = False) -> dict[str, object]:
    data = {"observation": {"text": text}, "reward": reward, "done": done}
    return {"type": "observation", "data": data}


def copies(
    server: Server, connection: ServerConnection, given: Mapping[str, Any], state: dict[str, Any]
) -> object:
    """Three moves; 1 for each that is the letter of the seed."""
    data = given["data"]
    if given["type"] == "reset":
        state |= {"letter": "abc"[data["seed"] % 3], "moves": 0}
        return seen(f"{state['letter']}>")
    if set(data) != {"move"} or not isinstance(data["move"], str):
        errors = [{"loc": ["move"], "msg": "Field required"}]
        said = {"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": errors}
        return {"type": "error", "data": said}
    if data["move"] == "boom":
        return {"type": "error", "data": {"message": "broken", "code": "EXECUTION_ERROR"}}
    state["moves"] += 1
    return seen(".", float(data["move"] == state["letter"]), state["moves"] == 3)


def letters(
    server: Server, connection: ServerConnection, given: Mapping[str, Any], state: dict[str, Any]
) -> object:
    """Two moves; 1 for each that is a small letter, as a quarter of all signs are."""
    state["moves"] = state.get("moves", 0) + 1 if given["type"] == "step" else 0
    move = given["data"].get("move", "")
    right = len(move) == 1 and "a" <= move <= "z"
    return seen(f"{given['data'].get('seed', 0) % 3}>", float(right), state["moves"] == 2)


ACTION = {"properties": {"move": TEXT, "metadata": {"type": "object"}}, "required": ["move"]}


@contextlib.contextmanager
def serving(
    sessions: int = 8,
    answer: Answer = copies,
    action: Any = ACTION,
    observation: Any = None,
) -> Iterator[Server]:
    server = Server(sessions, answer, action, observation or {"properties": WORDS})
    with serve(server.session, "127.0.0.1", 0, process_request=server.plain) as listening:
        server.port = listening.socket.getsockname()[1]
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()
