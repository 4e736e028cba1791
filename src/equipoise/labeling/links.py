"""Links of annotators. A link has its token after "#", the part of an address that browsers do not
send.
"""

from __future__ import annotations

import getpass
import shlex
import socket
from collections.abc import Iterator, Sequence

from equipoise.feedback import Store

WILDCARDS = ("0.0.0.0", "::")


def address(host: str, port: int) -> str:
    """Return the address of the page, with the name of this machine if it listens everywhere."""
    name = socket.gethostname().lower() if host in WILDCARDS else host
    return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"


def lines(store: Store, at: str, names: Sequence[str]) -> Iterator[str]:
    """Yield a line for each name: the link of a new annotator, which nobody can print again, or
    where the old one is.

    Without names: all annotators that the store has, or a new one named after the user.
    """
    known = [one.name for one in store.annotators() if one.active]
    for name in dict.fromkeys(names or known or [_user()]):
        if name in known:
            revoke = shlex.join(("equipoise", "feedback", "revoke", str(store.path), name))
            yield f"{name}: keeps the link; to replace it: {revoke}, then --annotator again"
        else:
            yield f"{name}: {at}#token={store.add_annotator(name)}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container whose user has no name
        return "annotator"
