"""The things that the two ends find on their machines: queues, stores of weights, the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from equipoise.runtime.cluster.frames import Body
from equipoise.types import Array, Slot, Trajectory


class Queue(Protocol):
    """A learner's queue, as far as the proxy writes into it."""

    def reserve(self, streams: Array) -> Mapping[str, Slot] | None: ...
    def commit(self, slots: Mapping[str, Slot]) -> None: ...
    def restart(self, slots: Mapping[str, Slot]) -> None: ...
    def issued(self, sequence: int) -> Array: ...  # of a queue of issued prompts alone
    def block(self, place: int) -> Mapping[str, Trajectory]: ...


class Versions(Protocol):
    """The weights of one policy at home, as bytes."""

    @property
    def version(self) -> int: ...
    def fetch_bytes(self, newer_than: int) -> tuple[int, Array] | None: ...


class Store(Protocol):
    """The weights of one policy at a site."""

    @property
    def nbytes(self) -> int: ...  # of ``publish_bytes``
    @property
    def version(self) -> int: ...
    def publish_bytes(self, version: int, data: Body) -> None: ...


class Heard(Protocol):
    """The handling of the messages that concern the driver alone."""

    # of a worker of that site
    def said(self, site: str, title: str, message: Mapping[str, object]) -> None: ...
    def file(
        self, site: str, title: str, name: str, data: bytes, step: int | None = None
    ) -> None: ...  # of a checkpoint; whole
    # of a replay's segment, from a byte on
    def rows(self, site: str, title: str, name: str, at: int, data: bytes) -> None: ...
    def joined(self, site: str) -> None: ...  # a session begins
    def left(self, site: str, how: str) -> None: ...  # it is over
