"""Causes: which exceptions aborted episodes, counted in arrays that processes share.

A cause is what failed and where (``capsule.cause_of``); its text is the first message that came of
it. The env's process is the only writer: it writes a text before it counts, so that a reader sees
no count without its text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from equipoise import tree
from equipoise.tree import ArraySpec
from equipoise.types import Array

MOST = 6  # causes of one group of envs; the last place counts further causes
SIZE = 192  # bytes of a text
OTHER = "other exceptions"


class Causes:
    """The causes of one group of envs."""

    specs = {"times": ArraySpec((MOST,), "int64"), "texts": ArraySpec((MOST, SIZE), "uint8")}

    def __init__(self, views: dict[str, Array] | None = None) -> None:
        """``views``: arrays of these ``specs``; None: arrays of its own."""
        views = tree.zeros(self.specs) if views is None else views
        self._times, self._texts = views["times"], views["texts"]

    def add(self, cause: str, message: str) -> None:
        """Count an episode that was aborted by this cause."""
        i = next((i for i in range(MOST) if not self._times[i] or self._key(i) == cause), MOST - 1)
        if not self._times[i]:
            text = message if i < MOST - 1 else OTHER
            key = (cause if i < MOST - 1 else OTHER).encode()[: SIZE // 2]
            data = (
                key + b"\0" + " ".join(text.split()).encode(errors="replace")[: SIZE - len(key) - 1]
            )
            self._texts[i] = 0
            self._texts[i, : len(data)] = np.frombuffer(data, np.uint8)
        self._times[i] += 1

    def _key(self, i: int) -> str:
        return bytes(self._texts[i]).partition(b"\0")[0].decode(errors="ignore")

    @property
    def told(self) -> list[tuple[str, str, int]]:
        """(cause, text, episodes) of each."""
        rows = (bytes(row).partition(b"\0") for row in self._texts)
        texts = [
            (key.decode(errors="ignore"), text.rstrip(b"\0").decode(errors="ignore"))
            for key, _, text in rows
        ]
        return [
            (key, text, int(times))
            for (key, text), times in zip(texts, self._times, strict=True)
            if times
        ]


def most_frequent(groups: Sequence[Causes]) -> dict[str, int]:
    """Aborted episodes by cause over several groups of envs: at most ``MOST``, frequent first."""
    texts: dict[str, str] = {}
    found: dict[str, int] = {}
    for key, text, times in (item for one in groups for item in one.told):
        shown = texts.setdefault(key, text)
        found[shown] = found.get(shown, 0) + times
    return dict(sorted(found.items(), key=lambda item: -item[1])[:MOST])
