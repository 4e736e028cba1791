"""The paths of a recording proxy: OpenAI's, ``/v1/reward`` and ``/v1/ledger``.

A call's conversation and group may also be in its path, so that an agent needs another base URL
alone: ``/groups/GROUP/conversations/NAME/v1/chat/completions``. Names in a path, and the names in
the header of an answer, are percent-encoded.
"""

from __future__ import annotations

import asyncio
from urllib.parse import quote, unquote_to_bytes

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from equipoise.serving import messages
from equipoise.serving.app import Exchange
from equipoise.serving.chat import app as chat
from equipoise.serving.chat.app import JSON
from equipoise.serving.chat.wire import Kind
from equipoise.serving.chat.writer import Piece
from equipoise.serving.guard import Guard
from equipoise.serving.messages import Refused
from equipoise.serving.proxy.answers import CallAnswers
from equipoise.serving.proxy.requests import CONVERSATION, GROUP, PATH, read_call, read_reward
from equipoise.serving.proxy.service import CallService

SHOWN = ":/@=+ "  # letters of a name that stand in a header as they are
PATHS = (*chat.PATHS, "/v1/reward", "/v1/ledger")


class ProxyApp(chat.App):
    """The paths of a run that learns from calls."""

    service: CallService

    def __init__(self, service: CallService, guard: Guard, *, most_body: int) -> None:
        super().__init__(service, guard, most_body=most_body)
        self._paths = frozenset((*self._paths, *PATHS))
        self.posts = {**self.posts, "/v1/reward": self._reward}
        self._rest.router.routes[:0] = [
            Route("/v1/ledger", self._ledger, methods=["GET"]),
            # ``posts`` answers this; other methods come here and are refused
            Route("/v1/reward", self._ledger, methods=["POST"]),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # the path as it was sent: a name may have a slash, as %2F
        if (found := PATH.fullmatch(scope["raw_path"].decode("latin-1"))) is not None:
            group, conversation, path = found.groups()
            given = ((GROUP, group), (CONVERSATION, conversation))
            named = [(name, unquote_to_bytes(value)) for name, value in given if value]
            known = {name for name, _ in named}
            headers = [one for one in scope["headers"] if one[0] not in known]
            scope = {**scope, "path": path, "raw_path": path.encode(), "headers": headers + named}
        await super().__call__(scope, receive, send)

    async def _answer(self, kind: Kind, exchange: Exchange) -> None:
        if messages.codec(exchange.headers.get(b"content-type")) is not messages.json:
            raise Refused(415, "Content-Type: must be application/json, got msgpack")
        body = await self.body(exchange.headers, exchange.receive)
        asked = read_call(kind, body, exchange.headers, self.service.model.name)
        reply = await self.service.ask(asked)
        leaving = asyncio.ensure_future(chat.fail_when_left(exchange.receive, reply))
        call = self.service.call_writer.call_of(reply)
        answers = CallAnswers(
            asked, reply, lambda token: self.service.model.tokenizer.decode([token]), call
        )
        try:
            if asked.stream:
                return await self._stream(exchange, reply, answers)
            pieces = list[Piece]()
            while some := await reply.next():
                pieces += some
            named = [turn.conversation.name for turn in call.turns]
            shown = ", ".join(quote(one, safe=SHOWN) for one in dict.fromkeys(named))
            where = (CONVERSATION, shown.encode())
            await self.answer(exchange, 200, answers.whole(pieces), (*JSON, where))
        finally:
            leaving.cancel()
            self.service.end(reply)

    async def _reward(self, exchange: Exchange) -> None:
        body = await self.body(exchange.headers, exchange.receive)
        found = await self.service.reward(read_reward(body))
        await self.answer(exchange, 200, messages.json.encode(found), JSON)

    async def _ledger(self, request: Request) -> Response:
        return self._json(self.service.ledger())
