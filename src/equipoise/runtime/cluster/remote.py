"""What home knows of each site, and of each group of envs there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from equipoise.experience.queue.unstacked import Last
from equipoise.runtime.cluster.line import Line
from equipoise.runtime.cluster.protocols import Queue
from equipoise.types import Array, Slot


@dataclass(slots=True)
class Remote:
    """One group of envs on another machine."""

    group: int
    queue: Queue
    streams: Array
    held: int = 1  # blocks that its actor writes at a time
    wanted: int = 0  # places that it waits for
    life: int = 0  # of its actor, as the site counts
    open: dict[int, Mapping[str, Slot]] = field(default_factory=dict)  # by sequence: granted, and the rows have not come
    last: Last | None = None  # of its rows that have come in this session


@dataclass(slots=True)
class Site:
    """One machine with actors, as home sees it."""

    name: str
    incarnation: int  # the newest that was started; messages of an older one are refused
    line: Line
    groups: tuple[int, ...]  # whose rows are written there
    stepped: tuple[int, ...]  # those whose envs are stepped there, and acted for at home
    counts: frozenset[int]  # the numbers of the parts that its workers write
    shards: tuple[int, ...]  # that keep rows there
    kept: frozenset[int]  # the groups whose rows they keep
    nonce: int = 0  # of the session; 0: there is none
    newest: int = 0  # the newest nonce so far: what asks with an older one is late
    told: tuple[int, int, bool] | None = None  # the cut, its step, and whether the learners save, that it was told
    known: dict[int, bytes] = field(default_factory=dict)  # what it was told that learners elsewhere say, by part
    leaving: bool = False  # it gets no more blocks, and hands its actors over
    file: bytes = b""  # that has come, and whose name is said next


@dataclass(frozen=True, slots=True)
class Traffic:
    """The lines of one site: bytes from it and to it."""

    received: int
    sent: int
