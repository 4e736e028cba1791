"""The guard of a page: only names of this machine, and pages of this server, may send requests."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from equipoise.access import LOCAL, is_address, named_host
from equipoise.pages.responses import JSONResponse

LONGEST_BODY = 8 << 10  # bytes of a request
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


class Guard:
    """Wraps an application: what a stranger asks is refused before the application sees it."""

    # paths that a link on another page may open; they have no data
    entries: tuple[str, ...] = ("/",)

    def __init__(self, app: ASGIApp, *, host: str) -> None:
        """``host``: the address that the server listens on."""
        self._app = app
        self._names = {*LOCAL, host.lower(), socket.gethostname().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        problem = self.refused(scope, Headers(scope=scope))

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if problem is not None:
            status, said = problem
            await JSONResponse({"error": said}, status)(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)

    def refused(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        """The status and the reason of a refusal; None for a request that may pass."""
        host = headers.get("host", "")
        if not self._ours(host):
            return 421, f"Host: expected an address or a name of this machine, got {host[:100]!r}"
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return 403, f"Origin: expected this page, http://{host}, got {origin[:100]!r}"
        elsewhere = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if elsewhere and scope["path"] not in self.entries:
            return 403, "Sec-Fetch-Site: expected a request of this page, got one of another"
        chunked = "transfer-encoding" in headers  # its length would be whatever arrives
        if chunked or (scope["method"] == "POST" and "content-length" not in headers):
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
        return None

    def _ours(self, host: str) -> bool:
        """Return True for a name or address of this machine. Another name could be led here by an
        attacker (DNS rebinding).
        """
        name = named_host(host)
        return name in self._names or is_address(name)


def cookie_name(headers: Mapping[str, str], name: str) -> str:
    """The name of a cookie with the port, since the servers of a host share their cookies."""
    return f"{name}_{headers.get('host', '').rpartition(':')[2] or 80}"


def read_cookie(headers: Mapping[str, str], name: str) -> str | None:
    """The value of a cookie of this port; None if the request has none."""
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(cookie_name(headers, name))
    except CookieError:
        return None
    return None if cookie is None else cookie.value
