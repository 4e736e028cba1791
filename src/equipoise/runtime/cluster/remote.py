"""What home knows of each site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from equipoise.runtime.cluster.carried import Carried
from equipoise.runtime.cluster.frames import Kind
from equipoise.runtime.cluster.line import Line


@dataclass(slots=True)
class Site:
    """One machine with workers, as home sees it."""

    name: str
    incarnation: int  # the newest that was started; messages of an older one are refused
    line: Line
    # home's ends of what it shares with that machine, in the order in which they are served
    carried: Sequence[Carried]
    by_kind: Mapping[Kind, Carried]
    nonce: int = 0  # of the session; 0: there is none
    newest: int = 0  # the newest nonce so far: what asks with an older one is late
    # the cut, its step, and whether the learners save, that it was told
    told: tuple[int, int, bool] | None = None
    leaving: bool = False  # its workers are to move
    file: bytes = b""  # that has come, and whose name is said next


@dataclass(frozen=True, slots=True)
class Traffic:
    """The lines of one site: bytes from it and to it."""

    received: int
    sent: int
