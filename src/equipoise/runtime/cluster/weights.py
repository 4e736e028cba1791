"""Weights between machines: home sends the newest version of a policy to each site that asks for
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from equipoise.runtime.cluster.carried import Carried
from equipoise.runtime.cluster.frames import Ask, Kind, Message, Weights
from equipoise.runtime.cluster.protocols import Store, Versions
from equipoise.runtime.cluster.wire import Refused
from equipoise.types import Array


class Newest:
    """The newest version of each policy as bytes, which all sites share while it is on its way."""

    def __init__(self, versions: Sequence[Versions]) -> None:
        self._versions = versions
        # the newest version that was asked for, by policy
        self._fetched: dict[int, tuple[int, bytes]] = {}

    def __len__(self) -> int:
        return len(self._versions)

    def version(self, policy: int) -> int:
        return self._versions[policy].version

    def versions(self) -> list[int]:
        return [one.version for one in self._versions]

    def fetch(self, policy: int) -> tuple[int, bytes]:
        """(version, bytes)."""
        found = self._versions[policy].fetch_bytes(self._fetched.get(policy, (-1, b""))[0])
        if found is not None:
            self._fetched[policy] = found[0], bytes(found[1])
        return self._fetched[policy]


class HomeWeights(Carried):
    """Home's end, for one site."""

    def __init__(self, newest: Newest) -> None:
        self._newest = newest
        # by policy, the version that the site has, until there is a newer one
        self._asked: dict[int, int] = {}
        self.most = {Kind.ASK: 0}

    def take(self, message: Message) -> None:
        match message:
            case Ask(policy, version):
                if not 0 <= policy < len(self._newest):
                    raise Refused(
                        f"ask: expected one of {len(self._newest)} policies, got {policy}"
                    )
                self._asked[policy] = version

    def ready(self) -> Iterator[Message]:
        for policy, has in list(self._asked.items()):
            if self._newest.version(policy) > has:
                del self._asked[policy]
                yield Weights(policy, *self._newest.fetch(policy))

    def forget(self) -> None:
        self._asked.clear()


class SiteWeights(Carried):
    """The site's end, the one process that publishes into the stores, unless learners of the site
    do.
    """

    def __init__(
        self, stores: Sequence[Store], *, asks: bool = True, follows: bool = False
    ) -> None:
        """``stores``: of each policy. ``asks``: False if learners of this site publish into them.
        ``follows``: each new version is asked for, whether or not a block needs it.
        """
        self._stores, self._asks, self._follows = stores, asks, follows
        self.most = {Kind.WEIGHTS: max((store.nbytes for store in stores), default=0)}
        self.forget()

    def forget(self) -> None:
        self._wanted, self._asked = set[int](), set[int]()

    def here(self, versions: Array) -> bool:
        """Return True if these versions of all policies are here. Missing ones are asked for."""
        missing = np.flatnonzero(versions > [store.version for store in self._stores]).tolist()
        self._wanted.update(missing)
        return not missing

    def ready(self) -> Iterator[Message]:
        if self._follows:
            self._wanted.update(range(len(self._stores)))
        for policy in sorted(self._wanted - self._asked) if self._asks else ():
            self._asked.add(policy)
            yield Ask(policy, self._stores[policy].version)
        self._wanted.clear()

    def take(self, message: Message) -> None:
        match message:
            case Weights(policy, version, body):
                if not 0 <= policy < len(self._stores) or self._stores[policy].nbytes != len(body):
                    raise Refused(
                        f"weights: expected a policy's, got {policy} with {len(body):,} bytes"
                    )
                self._asked.discard(policy)
                if version > self._stores[policy].version:
                    self._stores[policy].publish_bytes(version, body)
