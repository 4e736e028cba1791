"""Access: the callers that a server accepts, by the address that it listens at, its token, and the
name in a request's Host header.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
from pathlib import Path

LOCAL = ("localhost", "127.0.0.1", "::1")
SHORTEST, LONGEST = 16, 4096  # letters of a token


def is_address(name: str) -> bool:
    """Is this an IP address, and no name that somebody could lead elsewhere?"""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_local(host: str) -> bool:
    """Can only this machine reach what listens there?"""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


_HOST = re.compile(r"(?:\[([0-9a-f:.%]+)\]|([^\[\]:@/\\\s]+))(?::\d{0,5})?", re.ASCII)


def named_host(header: str) -> str:
    """A Host header in small letters, without its port, and an IPv6 address without its brackets.

    "" for a header with anything more, such as ``[::1]evil.example`` or
    ``localhost:80@evil.example``.
    """
    found = _HOST.fullmatch(header.lower())
    if found is not None:
        return found[1] or found[2]
    return header.lower() if is_address(header) else ""


def bearer_token(authorization: str) -> str | None:
    """The token of an Authorization header of the scheme Bearer, in small or capital letters; None
    for another scheme.
    """
    scheme, _, token = authorization.partition(" ")
    return token.strip(" ") if scheme.lower() == "bearer" else None


def read_token(variable: str, file: str | os.PathLike[str] | None, where: str) -> str | None:
    """The token in a file, else in an environment variable, else None; ValueError for a token that
    is easily guessed.

    ``where``: the origin of the file's name, for the message. No option takes the token itself,
    since other users of a machine see the arguments of its processes.
    """
    if file is None:
        said, where = os.environ.get(variable, ""), variable
        if not said:
            return None
    else:
        with Path(file).expanduser().open("rb") as opened:
            said = opened.read(LONGEST + 1).decode("latin-1").strip()
    fits = (
        SHORTEST <= len(said) <= LONGEST
        and said.isascii()
        and said.isprintable()
        and " " not in said
    )
    if not fits:
        raise ValueError(
            f"{where}: expected a token of {SHORTEST} to {LONGEST:,} letters, digits and signs "
            "without spaces, such as "
            "'openssl rand -hex 16' prints, got "
            f"{'another' if len(said) >= SHORTEST else f'{len(said)} letters'}"
        )
    return said


def need_token(host: str, token: str | None, where: str, how: str) -> None:
    """ValueError for a host that others reach if there is no token. ``where`` named the host;
    ``how`` to give a token.
    """
    if token is None and not is_local(host):
        raise ValueError(
            f"{where}: must have a token if other machines can connect, got none; {how}"
        )


def same(one: str | bytes, other: str | bytes) -> bool:
    """Compare two secrets in a time that does not depend on where they differ. JSON can hold half a
    letter (a surrogate).
    """
    first, second = (
        x.encode("utf-8", "surrogatepass") if isinstance(x, str) else x for x in (one, other)
    )
    return hmac.compare_digest(first, second)
