"""The guard of the page: names of this machine and pages of this server may ask, from elsewhere
only with the token.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from equipoise.access import LOCAL, bearer_token, is_address, named_host, need_token, same

TOKEN = "EQUIPOISE_WATCH_TOKEN"  # the environment variable with the token
LONGEST_BODY = 8 << 10  # bytes of a request
# what may be asked without the token; the page itself says nothing of the runs
OPEN = ("/api/enter",)
HEADERS = {
    # The browser itself refuses another host's files, scripts within the page, and text that is set
    # as HTML.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; media-src 'self'; "
        "manifest-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def check_host(host: str, token: str | None) -> None:
    """ValueError for a host that others reach where there is no token."""
    example = f"{TOKEN}=$(openssl rand -hex 16) equipoise watch --host {host}"
    need_token(host, token, f"--host {host}", f"give --token-file FILE, or set {TOKEN}: {example}")


class Guard:
    """Wraps an application: what a stranger asks is refused before the application sees it."""

    def __init__(self, app: ASGIApp, *, host: str, token: str, closed: bool) -> None:
        """``closed``: reading needs the token as well, not only changes. The cookie of those that
        said it is random.
        """
        self._app, self._token, self._closed = app, token, closed
        self._names = {*LOCAL, host.lower(), socket.gethostname().lower()}
        self._secret = secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        problem = self._refused(scope, headers)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if problem is not None:
            status, said = problem
            await JSONResponse({"error": said}, status)(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)

    def _refused(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        """The status and the reason of a refusal; None for a request that may pass."""
        host = headers.get("host", "")
        if not self._ours(host):
            return 421, f"Host: expected an address or a name of this machine, got {host[:100]!r}"
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return 403, f"Origin: expected this page, http://{host}, got {origin[:100]!r}"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and scope["path"] != "/":
            return 403, "Sec-Fetch-Site: expected a request of this page, got one of another"
        if scope["method"] == "POST" and "content-length" not in headers:
            return 411, "Content-Length: expected the number of bytes, got none"
        if (
            not headers.get("content-length", "0").isdecimal()
            or int(headers.get("content-length", "0")) > LONGEST_BODY
        ):
            return 413, f"body: expected at most {LONGEST_BODY:,} bytes"
        if (
            scope["method"] == "POST"
            and headers.get("content-type", "").partition(";")[0] != "application/json"
        ):
            return 415, "Content-Type: expected application/json"
        asks = scope["path"].startswith("/api/") and scope["path"] not in OPEN
        if self._closed and asks and not self.entered(headers) and not self.says(headers):
            return 401, "expected the token of 'equipoise watch'"
        return None

    def _ours(self, host: str) -> bool:
        """A name or address of this machine? Another name could be one that somebody leads here
        (DNS rebinding).
        """
        name = named_host(host)
        return name in self._names or is_address(name)

    def says(self, headers: Mapping[str, str]) -> bool:
        """Does a request say the token?"""
        return self.right(bearer_token(headers.get("authorization", "")) or "")

    def right(self, token: str) -> bool:
        return same(token, self._token)

    def entered(self, headers: Mapping[str, str]) -> bool:
        """Does a request have the cookie of somebody who said the token?"""
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie(headers))
        except CookieError:
            return False
        return cookie is not None and same(cookie.value, self._secret)

    def cookie(self, headers: Mapping[str, str]) -> str:
        """The name of the cookie, with the port,
        since the servers of a host share their cookies.
        """
        return f"equipoise_watch_{headers.get('host', '').rpartition(':')[2] or 80}"

    def let_in(self, headers: Mapping[str, str], response: Any) -> None:
        """Give the cookie that lets a reader in."""
        response.set_cookie(
            self.cookie(headers), self._secret, httponly=True, samesite="strict", path="/"
        )
