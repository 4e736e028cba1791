"""The ASGI application. ``/v1/act`` is answered here, since it must be fast; Starlette has the
other paths.
"""

from __future__ import annotations

import time

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from equipoise.serving import bounds, messages, oip, page
from equipoise.serving.guard import Guard
from equipoise.serving.messages import Refused
from equipoise.serving.openapi import openapi
from equipoise.serving.service import Service
from equipoise.serving.waiting import Answer

ALLOWED = (
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"authorization, content-type"),
    (b"access-control-max-age", b"600"),
)


class Gone(Exception):
    """The caller left before its request was whole."""


class App:
    """The guard, the hot path, and Starlette behind them."""

    def __init__(self, service: Service, guard: Guard, *, most_body: int = 8 << 20) -> None:
        """``most_body``: bytes that a request may have."""
        self.service, self.guard, self.most_body = service, guard, most_body
        self._metrics_of = service.metrics
        routes = [
            # of which the other methods come here, to be refused
            Route("/v1/act", self._health, methods=["POST"]),
            Route("/v1/outcome", self._outcome, methods=["POST"]),
            Route("/v1/end", self._end, methods=["POST"]),
            Route("/", self._page, methods=["GET"]),
            Route("/docs", self._docs, methods=["GET"]),
            Route("/healthz", self._health, methods=["GET"]),
            Route("/readyz", self._ready, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            Route("/openapi.json", self._openapi, methods=["GET"]),
            *oip.routes(service, self.body),
        ]
        self._rest = Starlette(
            routes=routes,
            exception_handlers={HTTPException: _http_error, Refused: _refused},  # type: ignore[dict-item]
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
        try:
            if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
                origin = self.guard.check(
                    "/healthz", headers.get(b"host"), headers.get(b"origin"), None
                )
                return await self._send(send, path, began, 204, b"", [*_cors(origin), *ALLOWED])
            origin = self.guard.check(
                path, headers.get(b"host"), headers.get(b"origin"), headers.get(b"authorization")
            )
            if path == "/v1/act" and scope["method"] == "POST":
                codec = messages.codec(headers.get(b"content-type"))
                request = codec.decode("act", await self.body(headers, receive))
                answer = Answer()
                self.service.act(request, answer)
                body = codec.encode((await answer.get())[0])
                return await self._send(
                    send,
                    path,
                    began,
                    200,
                    body,
                    [(b"content-type", codec.content_type), *_cors(origin)],
                )
        except Refused as no:
            kind = (b"content-type", messages.JSON)
            return await self._send(
                send,
                path,
                began,
                no.status,
                messages.json.encode(no.body()),
                [kind, *_cors(origin)],
            )
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

    async def body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """The whole body of a request; Refused (413, 415) where it is too long, or compressed."""
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

    async def _send(
        self,
        send: Send,
        path: str,
        began: float,
        status: int,
        body: bytes,
        headers: list[tuple[bytes, bytes]],
    ) -> None:
        self._count(path, began, status)
        headers = [*headers, (b"content-length", b"%d" % len(body)), *self._closing()]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _closing(self) -> tuple[tuple[bytes, bytes], ...]:
        """While the server drains, callers are asked to come again by another connection: to
        another server.
        """
        return ((b"connection", b"close"),) if self.service.draining else ()

    def _count(self, path: str, began: float, status: int) -> None:
        self._metrics_of.request(
            path if path in PATHS else oip.kind(path), status, time.perf_counter() - began
        )

    # ------------------------------------------------------------------------------ the other paths

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

    async def _health(self, request: Request) -> Response:
        return Response(b'{"alive":true}', media_type="application/json")

    async def _ready(self, request: Request) -> Response:
        state = self.service.state()
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
            self.service.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    async def _openapi(self, request: Request) -> Response:
        return Response(messages.json.encode(openapi(self.service)), media_type="application/json")


PATHS = frozenset(
    (
        "/",
        "/docs",
        "/v1/act",
        "/v1/outcome",
        "/v1/end",
        "/healthz",
        "/readyz",
        "/metrics",
        "/openapi.json",
    )
)


def _cors(origin: bytes | None) -> tuple[tuple[bytes, bytes], ...]:
    return (
        () if origin is None else ((b"access-control-allow-origin", origin), (b"vary", b"origin"))
    )


async def _http_error(request: Request, error: HTTPException) -> Response:
    sentence = (
        f"{request.method[:20]} {request.url.path[:80]}: {error.detail}; /openapi.json "
        "lists the paths and methods"
    )
    return Response(
        messages.json.encode({"error": sentence}),
        error.status_code,
        error.headers,
        "application/json",
    )


async def _refused(request: Request, no: Refused) -> Response:
    return Response(messages.json.encode(no.body()), no.status, media_type="application/json")
