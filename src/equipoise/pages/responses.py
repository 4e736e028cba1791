"""JSON of requests and responses, and refusals with a status of HTTP."""

from __future__ import annotations

import json

import starlette.responses
from starlette.requests import Request
from starlette.responses import Response

from equipoise.files import plain


class Refused(Exception):
    """A question that cannot be answered, with a status of HTTP."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status


async def refused(_: Request, error: Exception) -> Response:
    """Answer a request for which ``Refused`` was raised."""
    assert isinstance(error, Refused)
    return JSONResponse({"error": str(error)}, error.status)


async def read_json(request: Request) -> object:
    """Return the JSON of a request, whose length the guard has bounded."""
    try:
        return json.loads(await request.body())
    except (ValueError, RecursionError):
        raise Refused(400, "body: expected JSON") from None


def encoded(data: object) -> bytes:
    """JSON that every browser reads, whatever the files hold: infinities are null, and half of a
    letter is "?".
    """
    return json.dumps(plain(data), allow_nan=False, ensure_ascii=False).encode(errors="replace")


class JSONResponse(starlette.responses.JSONResponse):
    def render(self, content: object) -> bytes:
        return encoded(content)
