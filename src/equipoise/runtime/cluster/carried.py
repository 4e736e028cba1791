"""The shared memory of workers on two machines, as the cluster carries it: one Protocol for both
ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from equipoise.runtime.cluster.frames import Kind, Message


class Carried(Protocol):
    """One end of something that workers share: blocks of rows, weights, steps of envs, shards or
    counts.

    A site has one end, and home has the other, for each site. An end uses neither the line nor the
    session.
    """

    # the kinds of messages that this end takes, and the most bytes of a body of each
    most: Mapping[Kind, int]

    def ready(self) -> Iterator[Message]:
        """Yield what is to be sent now. The caller asks in a session, and sends each before it asks
        for the next.
        """
        yield from ()

    def take(self, message: Message) -> None:
        """Take a message of the other end. ``Refused`` if it is wrong; then nothing has changed."""

    def forget(self) -> None:
        """A session has ended: its messages may not have come."""

    def leave(self) -> None:
        """The site's workers will move to another machine: begin nothing new."""
        return

    @property
    def quiet(self) -> bool:
        """Return True if nothing is under way that the site's workers finish before they save or
        move.
        """
        return True


def most_bytes(carried: Iterable[Carried]) -> dict[Kind, int]:
    """The most bytes of a body by kind of message, of all that these ends take."""
    found: dict[Kind, int] = {}
    for one in carried:
        for kind, size in one.most.items():
            found[kind] = max(size, found.get(kind, 0))
    return found


def by_kind(carried: Iterable[Carried]) -> dict[Kind, Carried]:
    """The end that takes the messages of each kind."""
    return {kind: one for one in carried for kind in one.most}
