"""The ASGI application: the guard of every request, and the paths of a policy."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from equipoise.serving import bounds, messages, oip, page
from equipoise.serving.guard import Guard
from equipoise.serving.messages import Header, Refused
from equipoise.serving.metrics import Metrics
from equipoise.serving.openapi import openapi
from equipoise.serving.service import Service
from equipoise.serving.waiting import Answer

ALLOWED = (
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"authorization, content-type"),
    (b"access-control-max-age", b"600"),
)


class Gone(Exception):
    """The caller left before it had an answer."""


@dataclass(slots=True)
class Exchange:
    """A request that passed the guard, and the way to answer it."""

    path: str
    headers: dict[bytes, bytes]
    receive: Receive
    send: Send
    began: float
    origin: bytes | None


class Served(Protocol):
    """A service behind the guard."""

    draining: bool
    metrics: Metrics

    def state(self) -> Mapping[str, object]: ...


class GuardedApp:
    """The guard of every request. ``posts`` has the POST requests that go past Starlette."""

    def __init__(
        self,
        served: Served,
        guard: Guard,
        routes: Sequence[BaseRoute],
        *,
        most_body: int,
        paths: Collection[str],
    ) -> None:
        """``most_body``: most bytes of a request; ``paths``: paths that are counted by their own
        names, besides the paths of health.
        """
        self.guard, self.most_body, self._served = guard, most_body, served
        self._paths = frozenset((*paths, "/healthz", "/readyz", "/metrics"))
        self.posts: Mapping[str, Callable[[Exchange], Awaitable[None]]] = {}
        health = [
            Route("/healthz", self._health, methods=["GET"]),
            Route("/readyz", self._ready, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
        ]
        self._rest = Starlette(
            routes=[*routes, *health],
            exception_handlers={HTTPException: self._http_error, Refused: self._refused},  # type: ignore[dict-item]
        )
        # a redirect would have the host that the caller named
        self._rest.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, origin, headers, began = (
            scope["path"],
            None,
            dict(scope["headers"]),
            time.perf_counter(),
        )
        exchange = Exchange(path, headers, receive, send, began, None)
        try:
            if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
                exchange.origin = self.guard.check(
                    "/healthz", headers.get(b"host"), headers.get(b"origin"), None
                )
                return await self.answer(exchange, 204, b"", ALLOWED)
            exchange.origin = origin = self.guard.check(
                path, headers.get(b"host"), headers.get(b"origin"), headers.get(b"authorization")
            )
            if (post := self.posts.get(path)) is not None and scope["method"] == "POST":
                return await post(exchange)
        except Refused as no:
            head = (b"content-type", messages.JSON), *no.headers
            return await self.answer(exchange, no.status, self.refusal(no), head)
        except Gone:
            return None

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(path, began, message["status"])
                message["headers"] = [*message["headers"], *_cors(origin), *self._closing()]
            await send(message)

        scope["headers_by_name"] = headers
        try:
            await self._rest(scope, receive, counted)
        except Gone:
            return None

    def refusal(self, no: Refused) -> bytes:
        """Return the body of a refusal."""
        return messages.json.encode(no.body())

    def sentence(self, request: Request, error: HTTPException) -> str:
        """Return the error of an unknown path or method."""
        return (
            f"{request.method[:20]} {request.url.path[:80]}: {error.detail}; /openapi.json "
            "lists the paths and methods"
        )

    async def answer(
        self, exchange: Exchange, status: int, body: bytes, headers: Sequence[Header]
    ) -> None:
        """Send a whole answer."""
        length = (b"content-length", b"%d" % len(body))
        await self.begin(exchange, status, (*headers, length))
        await exchange.send({"type": "http.response.body", "body": body})

    async def begin(self, exchange: Exchange, status: int, headers: Sequence[Header]) -> None:
        """Send the head of an answer."""
        self._count(exchange.path, exchange.began, status)
        all_ = [*headers, *_cors(exchange.origin), *self._closing()]
        await exchange.send({"type": "http.response.start", "status": status, "headers": all_})

    async def body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """Return the body of a request; Refused (413, 415) if it is too long or compressed."""
        if (
            encoding := headers.get(b"content-encoding")
        ) is not None and encoding.strip().lower() not in (b"", b"identity"):
            got = bounds.shown(encoding.decode("latin-1"))
            raise Refused(
                415,
                f"Content-Encoding: expected none, since bodies are taken as they are, got {got}",
            )
        announced = headers.get(b"content-length")
        # h11 lets only digits through
        if announced is not None and int(announced) > self.most_body:
            raise Refused(
                413, f"body: expected at most {self.most_body:,} bytes, got {int(announced):,}"
            )
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Gone
            part = message.get("body", b"")
            size += len(part)
            if size > self.most_body:
                raise Refused(413, f"body: expected at most {self.most_body:,} bytes, got more")
            parts.append(part)
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def _closing(self) -> tuple[tuple[bytes, bytes], ...]:
        """While the server drains, callers are asked to come again by another connection: to
        another server.
        """
        return ((b"connection", b"close"),) if self._served.draining else ()

    def _count(self, path: str, began: float, status: int) -> None:
        known = path if path in self._paths else self.kind(path)
        self._served.metrics.request(known, status, time.perf_counter() - began)

    def kind(self, path: str) -> str:
        """Return the name under which requests of another path are counted."""
        return "other"

    async def _health(self, request: Request) -> Response:
        return Response(b'{"alive":true}', media_type="application/json")

    async def _ready(self, request: Request) -> Response:
        state = self._served.state()
        known = self.guard.knows(request.scope["headers_by_name"].get(b"authorization"))
        # versions and files are not for strangers
        said = state if known else {"ready": state["ready"]}
        return Response(
            messages.json.encode(said),
            200 if state["ready"] else 503,
            media_type="application/json",
        )

    async def _metrics(self, request: Request) -> Response:
        return Response(
            self._served.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    async def _http_error(self, request: Request, error: HTTPException) -> Response:
        no = Refused(error.status_code, self.sentence(request, error))
        return Response(self.refusal(no), no.status, error.headers, "application/json")

    async def _refused(self, request: Request, no: Refused) -> Response:
        return Response(self.refusal(no), no.status, media_type="application/json")


class App(GuardedApp):
    """The paths of a policy. ``/v1/act`` is answered without Starlette, since it must be fast."""

    def __init__(self, service: Service, guard: Guard, *, most_body: int = 8 << 20) -> None:
        """``most_body``: bytes that a request may have."""
        self.service = service
        routes = [
            # ``posts`` answers this; other methods come here and are refused
            Route("/v1/act", self._health, methods=["POST"]),
            Route("/v1/outcome", self._outcome, methods=["POST"]),
            Route("/v1/end", self._end, methods=["POST"]),
            Route("/", self._page, methods=["GET"]),
            Route("/docs", self._docs, methods=["GET"]),
            Route("/openapi.json", self._openapi, methods=["GET"]),
            *oip.routes(service, self.body),
        ]
        super().__init__(service, guard, routes, most_body=most_body, paths=PATHS)
        self.posts = {"/v1/act": self._act}

    def kind(self, path: str) -> str:
        """Return the name under which requests of another path are counted."""
        return oip.kind(path)

    async def _act(self, exchange: Exchange) -> None:
        codec = messages.codec(exchange.headers.get(b"content-type"))
        request = codec.decode("act", await self.body(exchange.headers, exchange.receive))
        answer = Answer()
        self.service.act(request, answer)
        body = codec.encode((await answer.get())[0])
        await self.answer(exchange, 200, body, ((b"content-type", codec.content_type),))

    async def _outcome(self, request: Request) -> Response:
        codec = messages.codec(request.scope["headers_by_name"].get(b"content-type"))
        outcomes = codec.decode(
            "outcome", await self.body(request.scope["headers_by_name"], request.receive)
        )
        outcomes = outcomes if isinstance(outcomes, list) else [outcomes]
        if outcomes:
            await self.service.stored(outcomes)
        return Response(
            codec.encode({"stored": len(outcomes)}), media_type=codec.content_type.decode()
        )

    async def _end(self, request: Request) -> Response:
        codec = messages.codec(request.scope["headers_by_name"].get(b"content-type"))
        self.service.end(
            codec.decode(
                "end", await self.body(request.scope["headers_by_name"], request.receive)
            ).session
        )
        return Response(codec.encode({"ended": True}), media_type=codec.content_type.decode())

    async def _page(self, request: Request) -> Response:
        url = f"{request.url.scheme}://{request.headers.get('host', '')}"
        text = page.page(self.service, url, token=self.guard.closed)
        return Response(text, headers=page.HEADERS, media_type="text/html")

    async def _docs(self, request: Request) -> Response:
        return RedirectResponse("./", 302)  # no host in it, and right below any path

    async def _openapi(self, request: Request) -> Response:
        return Response(messages.json.encode(openapi(self.service)), media_type="application/json")


PATHS = ("/", "/docs", "/v1/act", "/v1/outcome", "/v1/end", "/openapi.json")


def _cors(origin: bytes | None) -> tuple[tuple[bytes, bytes], ...]:
    return (
        () if origin is None else ((b"access-control-allow-origin", origin), (b"vary", b"origin"))
    )
