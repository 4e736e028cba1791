"""The guard: who may ask over HTTP. It looks at the token, at Host (DNS rebinding) and at Origin (pages of other sites)."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

from equipoise.serving.messages import Refused

OPEN = ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready")  # without a token: what asks them has none
LOCAL = ("localhost", "127.0.0.1", "::1")
Headers = Iterable[tuple[bytes, bytes]]


class Guard:
    """Checks a request's headers."""

    def __init__(
        self, host: str, token: str | None = None, *, hosts: Collection[str] = (), origins: Collection[str] = ()
    ) -> None:
        """``host``: the address that is listened on. ValueError where others could ask without a token.

        ``hosts``: names by which callers may call this server, beside its address. ``origins``: of pages that may ask, such as
        "https://example.org".
        """
        self._everywhere = not is_local(host)
        if self._everywhere and token is None:
            raise ValueError(
                f"--host {host}: expected a token where others can ask, got none; give --token-file FILE, or serve on 127.0.0.1"
            )
        if token is not None and (len(token) < 16 or not token.isascii() or not token.isprintable()):
            raise ValueError("the token: expected at least 16 printable ASCII characters, got others")
        self._token = None if token is None else f"Bearer {token}".encode()
        self._hosts = {name.lower() for name in (*LOCAL, host, *hosts)}
        self._origins = {origin.rstrip("/").lower() for origin in origins}
        self._fine: set[bytes] = set()  # Host headers that were found good

    def check(self, path: str, host: bytes | None, origin: bytes | None, authorization: bytes | None) -> bytes | None:
        """Refused (401, 403) where a request may not be; else the origin that the answer has to allow, or None."""
        if host not in self._fine:
            self._check_host(host)
        if origin is not None:
            self._check_origin(origin, host)
        if self._token is not None and path not in OPEN:
            if authorization is None:
                raise Refused(401, "Authorization: expected 'Bearer TOKEN', got none")
            if not hmac.compare_digest(authorization, self._token):
                raise Refused(401, "Authorization: expected 'Bearer TOKEN' with this server's token, got another")
        return origin

    def _check_host(self, host: bytes | None) -> None:
        said = (host or b"").decode("latin-1").lower()
        name = _name(said)
        if name not in self._hosts and not (self._everywhere and _is_address(name)):
            expected = ", ".join(sorted(self._hosts))
            raise Refused(403, f"Host: expected one of {expected}, got {said[:200]!r}; --allow-host NAME lets another in")
        if host is not None and len(self._fine) < 64:
            self._fine.add(host)

    def _check_origin(self, origin: bytes, host: bytes | None) -> None:
        said = origin.decode("latin-1").rstrip("/").lower()
        if said in self._origins or (host is not None and urlsplit_host(said) == host.decode("latin-1").lower()):
            return
        expected = ", ".join(sorted(self._origins)) or "pages of this server alone"
        raise Refused(403, f"Origin: expected {expected}, got {said[:200]!r}; --allow-origin URL lets another in")


def is_local(host: str) -> bool:
    """Can only this machine reach a server that listens there?"""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def urlsplit_host(origin: str) -> str | None:
    """The host and port of an origin; None where it is none, as the "null" of a file."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return parts.netloc if parts.scheme in ("http", "https") else None


def _name(host: str) -> str:
    """A Host header without its port, and an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host
