"""What the tests of a served language model share: a small model of bytes, and a server in a thread
of this process.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from equipoise import web
from equipoise.listening import listen
from equipoise.nets.decoder import Decoder, DecoderConfig
from equipoise.serving.chat.app import App
from equipoise.serving.chat.model import Model
from equipoise.serving.chat.service import Service
from equipoise.serving.chat.settings import TextSettings
from equipoise.serving.guard import Guard
from equipoise.serving.server import Server, began, shut_down, url_of
from equipoise.types.packed import Prompt

POSITIONS, BYTES = 256, 256
Weights = tuple[str, Mapping[str, torch.Tensor]]


class Bytes:
    """A tokenizer whose tokens are bytes."""

    size, eos, pad, special = BYTES + 2, (BYTES,), BYTES + 1, {"pad_token_id": BYTES + 1}

    def __init__(self, *, chats: bool = True) -> None:
        self._chats = chats

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, token: Sequence[int]) -> str:
        return bytes(one for one in token if one < BYTES).decode(errors="replace")

    def prompt(self, prompt: Prompt, template: Mapping[str, object] = {}) -> list[int]:
        if isinstance(prompt, str):
            return self.encode(prompt)
        if not self._chats:
            raise ValueError("prompt: expected a text, since this has no chat template")
        return self.encode("".join(f"<{one['role']}>{one['content']}" for one in prompt) + "<>")

    def save(self, directory: object) -> None: ...


def net(seed: int = 0) -> Decoder:
    """A network whose texts are odd."""
    torch.manual_seed(seed)
    return Decoder(
        DecoderConfig(
            family="llama",
            vocab_size=BYTES + 2,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=8,
            intermediate_size=24,
            max_position_embeddings=POSITIONS,
            initializer_range=0.6,
            tie_word_embeddings=False,
        )
    )


class Versions:
    """A source of weights that the test sets."""

    def __init__(self) -> None:
        self.now: Weights | None = None
        self.error: Exception | None = None

    def newer(self, version: str) -> Weights | None:
        if self.error is not None:
            raise self.error
        return None if self.now is None or self.now[0] == version else self.now


def model(**given: Any) -> Model:
    usual: dict[str, Any] = {
        "name": "bytes",
        "version": "v0",
        "net": net(),
        "tokenizer": Bytes(),
        "positions": POSITIONS,
        "limit": 24,
    }
    return Model(**(usual | given))


class Chat:
    """A server, and requests to it."""

    service: Service
    url: str
    loop: asyncio.AbstractEventLoop

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(
        self, path: str, body: Any = None, method: str = "POST", **headers: str
    ) -> tuple[int, Any, Mapping[str, str]]:
        """(status, answer as JSON, headers)."""
        connection = self.connection()
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": "application/json", **headers}
        connection.request(method, path, data if method == "POST" else None, given)
        answer = connection.getresponse()
        said = answer.read()
        connection.close()
        kind = answer.headers.get("content-type", "")
        found = {name.lower(): value for name, value in answer.headers.items()}
        return answer.status, json.loads(said) if kind == "application/json" else said, found

    def text(self, prompt: Any, **more: Any) -> str:
        status, said, _ = self.ask("/v1/completions", {"model": "bytes", "prompt": prompt, **more})
        assert status == 200, said
        return str(said["choices"][0]["text"])

    def events(self, path: str, body: Any) -> list[Any]:
        """The events of a stream, without the last."""
        connection = self.connection()
        connection.request(
            "POST", path, json.dumps(body | {"stream": True}), {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        said = answer.read().decode()
        connection.close()
        assert answer.status == 200, said
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        *events, last, rest = said.split("\n\n")
        assert (last, rest) == ("data: [DONE]", "")
        return [json.loads(one.removeprefix("data: ")) for one in events]

    def until(self, fine: Callable[[], bool], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not fine():
            assert time.monotonic() < end
            time.sleep(0.005)


@contextmanager
def chatting(
    served: Model | None = None,
    *,
    rows: int = 8,
    queue: int = 256,
    deadline_s: float = 120.0,
    context: int | None = None,
    token: str | None = None,
    make: Callable[..., Service] | None = None,
) -> Iterator[Chat]:
    """A server of a model, in a thread of this process. ``make``: makes another service."""
    chat, up, down = Chat(), threading.Event(), asyncio.Event()
    failed: list[BaseException] = []

    async def serve() -> None:
        chat.loop = asyncio.get_running_loop()
        settings = TextSettings(queue=queue, context=context)
        how: dict[str, Any] = {"rows": rows, "seed": 1, "deadline_s": deadline_s}
        if make is None:
            chat.service = Service(served or model(), settings, **how)
        else:
            chat.service = make(settings, **how)
        app = App(chat.service, Guard("127.0.0.1", token), most_body=1 << 20)
        server, listening = Server(web.config(app)), listen("127.0.0.1", 0)
        chat.url = url_of(listening)
        chat.service.start()
        serving = asyncio.create_task(server.serve([listening]))
        await began(server, serving, [listening])
        following = asyncio.create_task(chat.service.follow())
        up.set()
        await down.wait()
        following.cancel()
        await shut_down(server, serving, chat.loop.time() + 5)
        listening.close()
        chat.service.close()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # for the test's own thread
            failed.append(error)
        finally:
            up.set()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    thread = threading.Thread(target=run)
    thread.start()
    assert up.wait(60)
    try:
        if failed:
            raise failed[0]
        yield chat
    finally:
        if not failed:
            chat.loop.call_soon_threadsafe(down.set)
        thread.join(60)
        torch.set_num_threads(threads)
    assert not thread.is_alive() and not failed
