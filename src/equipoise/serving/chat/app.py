"""The ASGI application of a language model: ``/v1/completions`` and ``/v1/chat/completions``."""

from __future__ import annotations

import asyncio
import time
from itertools import chain

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive

from equipoise.serving import messages
from equipoise.serving.app import Exchange, Gone, GuardedApp
from equipoise.serving.chat.answers import Answers, encode
from equipoise.serving.chat.openapi import openapi
from equipoise.serving.chat.service import Service
from equipoise.serving.chat.wire import Kind, error, known_name, read
from equipoise.serving.chat.writer import Piece, Reply
from equipoise.serving.guard import Guard
from equipoise.serving.messages import Refused
from equipoise.web import Chunks

JSON = ((b"content-type", messages.JSON),)
EVENTS = (b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")
PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/models", "/openapi.json")


class App(GuardedApp):
    """The paths of OpenAI's API for one model."""

    def __init__(self, service: Service, guard: Guard, *, most_body: int) -> None:
        """``most_body``: bytes that a request may have."""
        self.service, self._began = service, int(time.time())
        routes = [
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/v1/models/{name:path}", self._model, methods=["GET"]),
            Route("/openapi.json", self._openapi, methods=["GET"]),
            # ``posts`` answers these; other methods come here and are refused
            *(Route(path, self._models, methods=["POST"]) for path in PATHS[:2]),
        ]
        super().__init__(service, guard, routes, most_body=most_body, paths=PATHS)
        self.posts = {"/v1/completions": self._complete, "/v1/chat/completions": self._chat}

    def refusal(self, no: Refused) -> bytes:
        return encode(error(no))

    def sentence(self, request: Request, error: HTTPException) -> str:
        what = f"{request.method[:20]} {request.url.path[:80]}"
        return f"{what}: {error.detail}; try {', '.join(PATHS)}"

    async def _complete(self, exchange: Exchange) -> None:
        await self._answer("completions", exchange)

    async def _chat(self, exchange: Exchange) -> None:
        await self._answer("chat", exchange)

    async def _answer(self, kind: Kind, exchange: Exchange) -> None:
        if messages.codec(exchange.headers.get(b"content-type")) is not messages.json:
            raise Refused(415, "Content-Type: must be application/json, got msgpack")
        body = await self.body(exchange.headers, exchange.receive)
        asked = read(kind, body, self.service.model.name, self.service.names)
        reply = await self.service.ask(asked)
        leaving = asyncio.ensure_future(fail_when_left(exchange.receive, reply))
        tokenizer = self.service.model_of(reply).tokenizer
        answers = Answers(asked, reply, lambda token: tokenizer.decode([token]))
        try:
            if asked.stream:
                return await self._stream(exchange, reply, answers)
            pieces = list[Piece]()
            while some := await reply.next():
                pieces += some
            await self.answer(exchange, 200, answers.whole(pieces), JSON)
        finally:
            leaving.cancel()
            self.service.end(reply)

    async def _stream(self, exchange: Exchange, reply: Reply, answers: Answers) -> None:
        """Send an event for each part of the text.

        The head of the answer waits for the first part, so that a refusal has its own status, and
        every event the version.
        """
        begun, chunks = False, Chunks.of(exchange.send)

        def write(piece: Piece) -> bool:
            return chunks is not None and chunks.write(b"".join(answers.parts([piece])))

        try:
            while some := await reply.next():
                events = answers.parts(some)
                if not begun:
                    begun, events = True, chain(answers.first(), events)
                    await self.begin(exchange, 200, EVENTS)
                await exchange.send(
                    {"type": "http.response.body", "body": b"".join(events), "more_body": True}
                )
                reply.write_at_once = write
            end = b"".join(answers.last())
        except Refused as no:
            if not begun:
                raise
            end = b"data: " + self.refusal(no) + b"\n\n"
        await exchange.send({"type": "http.response.body", "body": end})

    async def _models(self, request: Request) -> Response:
        found = self.service.described()
        data = [self._description(name, version) for name, version in found.items()]
        return self._json({"object": "list", "data": data})

    async def _model(self, request: Request) -> Response:
        found, asked = self.service.described(), request.path_params["name"]
        name = known_name(asked, next(iter(found)), list(found))
        return self._json(self._description(name, found[name]))

    def _description(self, name: str, version: str) -> dict[str, object]:
        about: dict[str, object] = {"id": name, "object": "model", "created": self._began}
        return about | {"owned_by": "equipoise", "version": version}

    async def _openapi(self, request: Request) -> Response:
        return self._json(openapi(list(self.service.names)))

    def _json(self, value: object) -> Response:
        return Response(encode(value), media_type="application/json")


async def fail_when_left(receive: Receive, reply: Reply) -> None:
    """Wait until the caller leaves, and fail its reply."""
    while (await receive())["type"] != "http.disconnect":
        pass
    reply.fail(Gone())
