"""The guard: the callers that may use HTTP. It looks at the token, at Host (DNS rebinding) and at
Origin (pages of other sites).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

from equipoise.access import LOCAL, bearer_token, is_address, is_local, named_host, need_token, same
from equipoise.serving.messages import Refused

# without a token: their callers have no token
OPEN = ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready")
Headers = Iterable[tuple[bytes, bytes]]


class Guard:
    """Checks a request's headers."""

    def __init__(
        self,
        host: str,
        token: str | None = None,
        *,
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
    ) -> None:
        """``host``: the address that is listened on. ValueError if other machines could ask without
        a token.

        ``hosts``: names by which callers may call this server, besides its address. ``origins``: of
        pages that may ask, such as "https://example.org".
        """
        self._everywhere = not is_local(host)
        need_token(host, token, f"--host {host}", "give --token-file FILE, or serve on 127.0.0.1")
        self._token = token
        self._hosts = {name.lower() for name in (*LOCAL, host, *hosts)}
        self._origins = {origin.rstrip("/").lower() for origin in origins}
        self._fine: set[bytes] = set()  # Host headers that were found good

    @property
    def closed(self) -> bool:
        """Is a token needed?"""
        return self._token is not None

    def check(
        self, path: str, host: bytes | None, origin: bytes | None, authorization: bytes | None
    ) -> bytes | None:
        """Refused (401, 403) for a request that is not allowed; else the origin that the answer has
        to allow, or None.
        """
        if host not in self._fine:
            self._check_host(host)
        if origin is not None:
            self._check_origin(origin, host)
        if path not in OPEN and not self.knows(authorization):
            got = "got none" if authorization is None else "with this server's token, got another"
            raise Refused(401, f"Authorization: expected 'Bearer TOKEN', {got}")
        return origin

    def knows(self, authorization: bytes | None) -> bool:
        """Does the caller have the token, if the server needs a token?"""
        return self._token is None or (
            authorization is not None
            and same(bearer_token(authorization.decode("latin-1")) or "", self._token)
        )

    def _check_host(self, host: bytes | None) -> None:
        said = (host or b"").decode("latin-1").lower()
        name = named_host(said)
        if name not in self._hosts and not (self._everywhere and is_address(name)):
            expected = ", ".join(sorted(self._hosts))
            raise Refused(
                403,
                f"Host: expected one of {expected}, got {said[:200]!r}; --allow-host NAME lets "
                "another in",
            )
        if host is not None and len(self._fine) < 64:
            self._fine.add(host)

    def _check_origin(self, origin: bytes, host: bytes | None) -> None:
        said = origin.decode("latin-1").rstrip("/").lower()
        if said in self._origins or (
            host is not None and urlsplit_host(said) == host.decode("latin-1").lower()
        ):
            return
        expected = ", ".join(sorted(self._origins)) or "pages of this server alone"
        raise Refused(
            403,
            f"Origin: expected {expected}, got {said[:200]!r}; --allow-origin URL lets another in",
        )


def urlsplit_host(origin: str) -> str | None:
    """The host and port of an origin; None if it is no origin, as the "null" of a file."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return parts.netloc if parts.scheme in ("http", "https") else None
