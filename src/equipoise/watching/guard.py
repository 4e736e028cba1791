"""The guard of the live page: from elsewhere only with the token."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Scope

from equipoise.access import bearer_token, need_token, same
from equipoise.pages import guard

TOKEN = "EQUIPOISE_WATCH_TOKEN"  # the environment variable with the token
COOKIE = "equipoise_watch"
# paths that need no token; the page itself has no data of the runs
OPEN = ("/api/enter",)


def check_host(host: str, token: str | None) -> None:
    """Raise ValueError for a host that other machines reach without a token."""
    example = f"{TOKEN}=$(openssl rand -hex 16) equipoise watch --host {host}"
    need_token(host, token, f"--host {host}", f"give --token-file FILE, or set {TOKEN}: {example}")


class Guard(guard.Guard):
    """Also refuses a caller without the token, if reading needs it."""

    def __init__(self, app: ASGIApp, *, host: str, token: str, closed: bool) -> None:
        """``closed``: reading also needs the token, not only changes. The cookie that replaces the
        token is random.
        """
        super().__init__(app, host=host)
        self._token, self._closed = token, closed
        self._secret = secrets.token_urlsafe(32)

    def refused(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        if (problem := super().refused(scope, headers)) is not None:
            return problem
        asks = scope["path"].startswith("/api/") and scope["path"] not in OPEN
        if self._closed and asks and not self.entered(headers) and not self.says(headers):
            return 401, "expected the token of 'equipoise watch'"
        return None

    def says(self, headers: Mapping[str, str]) -> bool:
        """Return True if a request has the token in its header."""
        return self.right(bearer_token(headers.get("authorization", "")) or "")

    def right(self, token: str) -> bool:
        return same(token, self._token)

    def entered(self, headers: Mapping[str, str]) -> bool:
        """Return True if a request has the cookie of a reader who entered the token."""
        return same(guard.read_cookie(headers, COOKIE) or "", self._secret)

    def let_in(self, headers: Mapping[str, str], response: Any) -> None:
        """Give the cookie that lets a reader in."""
        name = guard.cookie_name(headers, COOKIE)
        response.set_cookie(name, self._secret, httponly=True, samesite="strict", path="/")
