"""URLs of servers that a run asks: read from a setting, without secrets in them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from equipoise.access import is_local
from equipoise.hints import shortened

HTTP = ("http", "https")


@dataclass(frozen=True, slots=True)
class Url:
    """Where a server listens."""

    scheme: str
    host: str
    port: int | None  # None: the scheme's own
    path: str  # without a slash at its end

    @property
    def local(self) -> bool:
        """Can only this machine reach it?"""
        return is_local(self.host)

    @property
    def netloc(self) -> str:
        """The host with its port, as in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


def read_url(
    text: str, wanted: str, example: str, token: str, schemes: Collection[str] = HTTP
) -> Url:
    """Read ``SCHEME://HOST[:PORT][/PATH]``, or the same without a scheme, which is http.

    ValueError: ``wanted`` begins its sentence, such as "vllm: must be URLs"; ``example`` is a good
    one; ``token`` tells where a token stands, since a URL must have neither a user nor a query. No
    part of a URL that may be a secret is repeated.
    """
    shown = shortened(repr(text.rpartition("@")[2].partition("?")[0].partition("#")[0]))
    example = f"such as {example}"
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ValueError(f"{wanted}, {example}, got {shown} ({error})") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            f"{wanted} without a user and a password, {example}, got those of {shown}; {token}"
        )
    if parts.query or parts.fragment:
        raise ValueError(
            f"{wanted} without a query and a fragment, {example}, got one behind {shown}; {token}"
        )
    if any(ord(one) < 33 for one in text):
        raise ValueError(f"{wanted} without spaces, {example}, got {shown}")
    if parts.scheme not in schemes or not host:
        raise ValueError(
            f"{wanted} with a host and one of {', '.join(schemes)}, {example}, got {shown}"
        )
    return Url(parts.scheme, host, port, parts.path.rstrip("/"))
