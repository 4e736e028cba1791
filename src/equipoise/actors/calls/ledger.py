"""The ledger of calls: every answer that was asked for is learned from, dropped with a reason, or
open. It lies in shared memory, so it outlives the process that writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from equipoise.tree import ArraySpec
from equipoise.types import Array, Tree

# why an answer is not learned from
REASONS: Mapping[str, str] = {
    "left": "the caller left before the answer",
    "unrewarded": "no reward came in time",
    "alone": "no other conversation of its group came in time",
    "old": "its tokens are older than max_lag allows",
    "long": "it does not fit into a sample",
    "ungraded": "the reward function failed, or gave no number",
    "died": "the process that kept it died, or the run was resumed",
    "ended": "the run ended",
}
NAMES = (
    "calls",
    "learned",
    *REASONS,
    "conversations",
    "samples",
    "spliced",
    "forks",
    "overridden",
    "refused",
)


class Ledger:
    """Counts of answers. A call for ``n`` answers counts ``n`` times. One writer.

    Besides the answers: ``conversations`` that began, ``samples`` that were learned from,
    ``spliced`` (answers whose prompt got the drawn tokens of an earlier answer, in place of its
    text's), ``forks`` (answers whose conversation went on from an earlier place or with other
    tokens), ``overridden`` (answers whose temperature, top_p or seed was not the caller's) and
    ``refused`` calls.
    """

    specs: ClassVar[dict[str, Tree]] = {"count": ArraySpec((len(NAMES),), "int64")}

    def __init__(self, views: Mapping[str, Array]) -> None:
        self._count = views["count"]

    def add(self, name: str, number: int = 1) -> None:
        """Add to a count of ``NAMES``."""
        self._count[NAMES.index(name)] += number

    def lost(self, reason: str) -> None:
        """Count all open answers as dropped."""
        self.add(reason, self.counts()["open"])

    def counts(self) -> dict[str, int]:
        """Return all counts by name, with ``open``."""
        found = dict(zip(NAMES, self._count.tolist(), strict=True))
        closed = found["learned"] + sum(found[name] for name in REASONS)
        return {"calls": found["calls"], "open": found["calls"] - closed} | found

    def state(self) -> Array:
        """Return a copy of the counts."""
        return self._count.copy()

    def load(self, count: Array) -> None:
        """Take counts over from ``state``."""
        self._count[:] = count


def metrics(views: Mapping[str, Array]) -> dict[str, float]:
    """Return the counts as numbers of a report: ``calls/learned``, ``calls/open``, ..."""
    return {f"calls/{name}": float(number) for name, number in Ledger(views).counts().items()}
